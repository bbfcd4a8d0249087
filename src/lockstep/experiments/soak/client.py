"""In the trainer's place: posts a round's requests as its client does, and waits for the answers."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import Any

from lockstep.experiments.soak.rounds import Round
from lockstep.run.health import direct
from lockstep.stacks.base import HOST, Soak

TIMEOUT_S = 3600.0
"""Nobody waits so long: the soak looks at the ledgers long before, and ends the server."""


class Asking(threading.Thread):
    """One round on its way. `answered` is set when the server has answered, or can no longer."""

    def __init__(self, soak: Soak, port: int, asked: Round) -> None:
        super().__init__(name="lockstep-client", daemon=True)
        self._soak, self._port, self._round = soak, port, asked
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
        asked = self._round
        body = self._soak.body(asked.prompts, asked.max_tokens, asked.seed)
        request = urllib.request.Request(
            f"http://{HOST}:{self._port}{self._soak.path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with direct().open(request, timeout=TIMEOUT_S) as answer:
            answers: list[Any] = json.load(answer)
        return answers
