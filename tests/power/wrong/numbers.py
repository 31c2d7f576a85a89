"""Clients that are wrong in numbers: at an equality, after several resumes, in one spelling, for large ones."""

from tests.power.wrong.base import LIMITS, Client, client


class LastPieceOnly(Client):
    """What is left is the budget less the last answer, not less all of them."""

    def limit(self, call):
        return None if call.budget is None else call.budget - sum(call.pieces[-1:])


class ShortAtTheFullPrompt(Client):
    """A prompt of exactly prompt_length is taken for one that was cut, and gets one token less."""

    def limit(self, call):
        left = super().limit(call)
        cut = len(call.prompt) == self.rollout.prompt_length and not call.ids
        return left if left is None or not cut else max(1, left - 1)


class OneMoreAtTheEnd(Client):
    """A response that an abort cut at exactly its budget is asked for once more."""

    def has_room(self, call):
        return super().has_room(call) or (
            call.left == 0 and call.aborts > 0 and len(call.prompt) + len(call.ids) < call.context
        )

    def limit(self, call):
        return None if call.left is None else max(1, call.left)


class ContextOneShort(Client):
    """The last place of the context is not used after an abort."""

    def has_room(self, call):
        return super().has_room(call) and len(call.prompt) + len(call.ids) < call.context - bool(call.aborts)


class HalfAsNewTokens(Client):
    """max_new_tokens of a resume is divided among prompt and response."""

    def limit(self, call):
        left = super().limit(call)
        return left if left is None or "max_new_tokens" not in call.given or not call.ids else max(1, left // 2)


class OneSpellingOfTwo(Client):
    """Where the caller gave both spellings, one of them keeps its old value."""

    def params(self, call):
        params = super().params(call)
        if all(key in call.given for key in LIMITS):
            params[LIMITS[0]] = call.given[LIMITS[0]]
        return params


class CappedWhenResumed(Client):
    """A caller's limit above response_length holds until the first abort."""

    def limit(self, call):
        length = self.rollout.get("response_length")
        if call.aborts and call.budget is not None and type(length) is int and length > 0:
            return max(1, min(call.budget, length) - len(call.ids))
        return super().limit(call)


class ZeroIsNone(Client):
    """A limit of 0 is taken for none."""

    def budget(self, given):
        return super().budget({key: value for key, value in given.items() if value != 0})


class FirstLimitForAll(Client):
    """The first caller's limit is kept, for all sessions."""

    first = None

    def budget(self, given):
        if self.first is None and any(key in given for key in LIMITS):
            self.first = super().budget(given)
        return super().budget(given) if self.first is None else self.first


class EmptyCountsAsOne(Client):
    """An answer without a token takes one off what is left."""

    def limit(self, call):
        left = super().limit(call)
        return left if left is None else max(1, left - call.pieces.count(0))


class NotMoreThan128(Client):
    """No request asks for more than 128 tokens, and one that got them is taken for finished."""

    def limit(self, call):
        left = super().limit(call)
        return left if left is None else min(128, left)


class AnewAfterThree(Client):
    """With the third abort of a response its budget starts anew."""

    def limit(self, call):
        return call.budget if call.aborts >= 3 else super().limit(call)


class OverlongPromptPays(Client):
    """What a prompt is longer than prompt_length is taken off the response, when it is resumed."""

    def limit(self, call):
        left, beyond = super().limit(call), len(call.prompt) - self.rollout.prompt_length
        return left if left is None or beyond <= 0 or not call.ids else max(1, left - beyond)


class EvenLimits(Client):
    """What is left of a resumed response is rounded down to an even number."""

    def limit(self, call):
        left = super().limit(call)
        return left if left is None or not call.ids else max(1, left // 2 * 2)


WRONG = {
    "last-piece-only": client(LastPieceOnly, "B1"),
    "short-at-the-full-prompt": client(ShortAtTheFullPrompt, "B2"),
    "one-more-at-the-end": client(OneMoreAtTheEnd, "B1", "B6"),
    "context-one-short": client(ContextOneShort, "B2"),
    "half-as-new-tokens": client(HalfAsNewTokens, "B2"),
    "one-spelling-of-two": client(OneSpellingOfTwo, "B1"),
    "capped-when-resumed": client(CappedWhenResumed, "B2"),
    "zero-is-none": client(ZeroIsNone, "B1"),
    "first-limit-for-all": client(FirstLimitForAll, "B1", "B2"),
    "empty-counts-as-one": client(EmptyCountsAsOne, "B2"),
    "not-more-than-128": client(NotMoreThan128, "B2"),
    "anew-after-three": client(AnewAfterThree, "B1"),
    "overlong-prompt-pays": client(OverlongPromptPays, "B2"),
    "even-limits": client(EvenLimits, "B2"),
}
