"""In the trainer's place: posts a round's requests as its client does, and waits for the answers."""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from lockstep.experiments.soak.rounds import Prompt, Round
from lockstep.run.health import direct
from lockstep.stacks.swift.commands import HOST

TEMPERATURE, TOP_P = 1.1, 0.8
"""As in the incident's script."""
TIMEOUT_S = 3600.0
"""Nobody waits so long: the soak looks at the ledgers long before, and ends the server."""


def read_prompts(dataset: Path) -> list[Prompt]:
    """The rows of a checked data set (`lockstep.fixtures.shapes.check_dataset`)."""
    prompts = []
    for line in dataset.read_text().splitlines():
        row = json.loads(line)
        pictures = (base64.b64encode((dataset.parent / image).read_bytes()) for image in row["images"])
        text = row["messages"][0]["content"]
        prompts.append(Prompt(text, tuple(picture.decode() for picture in pictures)))
    return prompts


class Asking(threading.Thread):
    """One round on its way. `answered` is set when the server has answered, or can no longer."""

    def __init__(self, port: int, asked: Round) -> None:
        super().__init__(name="lockstep-client", daemon=True)
        self._port, self._round = port, asked
        self.answered = threading.Event()
        self.failure = ""
        """Why there is no answer for each request, in words; empty if there is."""

    def run(self) -> None:
        try:
            answers = self._post()
            if len(answers) != len(self._round.prompts):
                self.failure = f"{len(answers)} answers to {len(self._round.prompts)} requests"
        except urllib.error.HTTPError as error:
            with error:
                self.failure = f"HTTP status {error.code}: {error.read(300).decode(errors='replace')}"
        except (OSError, ValueError) as error:
            self.failure = f"no answer: {error}"
        finally:
            self.answered.set()

    def _post(self) -> list[Any]:
        request = urllib.request.Request(
            f"http://{HOST}:{self._port}/infer/",
            data=json.dumps(body(self._round)).encode(),
            headers={"Content-Type": "application/json"},
        )
        with direct().open(request, timeout=TIMEOUT_S) as answer:
            answers: list[Any] = json.load(answer)
        return answers


def body(asked: Round) -> dict[str, Any]:
    """What ms-swift 3.10.3's `VLLMClient.infer` posts."""
    return {
        "infer_requests": [
            {"messages": [{"role": "user", "content": prompt.text}], "images": list(prompt.images)}
            for prompt in asked.prompts
        ],
        "request_config": {
            "max_tokens": asked.max_tokens,
            "temperature": TEMPERATURE,
            "top_p": TOP_P,
            "seed": asked.seed,
            "n": 1,
        },
        "use_tqdm": False,
    }
