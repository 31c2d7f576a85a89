"""The fake model: where it stops by itself, and what is known of a session. Its tokens are told by `sim.tokens`."""

from sim.case import Case, prompt_owner


class FakeModel:
    """Stops at the turn's own length, counted from the turn's prompt; see `sim.servers.port.ModelEnds`."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._stop_position: dict[int, int | None] = {}
        """Of the sessions that live."""

    def begin_turn(self, session: int, prompt_tokens: int, response_tokens: int | None) -> None:
        self._stop_position[session] = None if response_tokens is None else prompt_tokens + response_tokens

    def end_session(self, session: int) -> None:
        self._stop_position.pop(session, None)

    def stop_after(self, session: int, prompt_tokens: int) -> int | None:
        position = self._stop_position.get(session)
        return None if position is None else max(1, position - prompt_tokens)

    def shared_prompt(self, session: int) -> tuple[int, int] | None:
        if not 0 <= session < self._case.num_sessions:
            return None  # a client may send token ids that belong to no session
        owner = prompt_owner(self._case, session)
        if owner == session:
            return None
        return owner, min(self._case.session(each).prompt_tokens for each in (owner, session))

    def priority(self, session: int) -> int:
        return self._case.session(session).priority if 0 <= session < self._case.num_sessions else 0
