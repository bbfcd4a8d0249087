"""Many generation rounds on the real engines, with workers paused at random: how often does the rollout
hang by itself?

`rounds` says what a round is, `pauses` stops workers, `client` asks, `rollout` is the server, `arm` plays
rounds and goes on after a hang, `record` keeps what came of them, `statistics` and `page` tell it.
"""
