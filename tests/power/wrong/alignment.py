"""Clients that send and return the wrong content: ids, log probabilities, versions, stop reasons."""

from tests.power.wrong.base import ABORTED, Client, client


class LogProbsOfTheLast(Client):
    """Keeps the log probabilities of the last answer only, where there were two resumes."""

    def merge(self, call, output):
        super().merge(call, output)
        if call.aborts >= 2:
            call.log_probs = call.log_probs[-len(output.token_ids) :] if output.token_ids else []


class LogProbsOneAhead(Client):
    """Leaves out the first log probability of an answer that follows an empty one."""

    def merge(self, call, output):
        follows_empty = call.pieces[-1:] == [0]
        super().merge(call, output)
        if follows_empty and output.token_ids:
            at = len(call.log_probs) - len(output.token_ids)
            call.log_probs = call.log_probs[:at] + call.log_probs[at + 1 :] + call.log_probs[-1:]


class OldestIsTheLast(Client):
    """Names the versions of the last answer as the oldest, from the third on."""

    def result(self, call):
        output = super().result(call)
        if len(call.versions) >= 3:
            output.extra_fields["min_global_steps"] = call.versions[-1]
        return output


class NewestIsTheFirst(Client):
    """The newest version is that of the first answer with a token."""

    def result(self, call):
        output = super().result(call)
        if call.versions:
            output.extra_fields["max_global_steps"] = call.versions[0]
        return output


class ResumesWithoutTheLast(Client):
    """A resume lacks the last token where that is the only one of its answer."""

    def prompt(self, call):
        return call.prompt + (call.ids[:-1] if call.pieces[-1:] == [1] else call.ids)


class SendsAPieceTwice(Client):
    """The second resume sends the last piece once more."""

    def prompt(self, call):
        sent = super().prompt(call)
        return sent + call.ids[-call.pieces[-1] :] if call.aborts == 2 and call.pieces[-1] else sent


class AbortedAtTheEndIsDone(Client):
    """A response that was aborted when nothing was left is said to have come to its natural end."""

    def result(self, call):
        if call.aborts and call.left == 0:
            call.reason = "completed"
        return super().result(call)


class OnceAbortedForEver(Client):
    """A response that was aborted twice is said to be aborted, whatever ended it."""

    def result(self, call):
        if call.aborts >= 2:
            call.reason = ABORTED[0]
        return super().result(call)


class VersionOfNothing(Client):
    """An answer without a token counts among the versions, where it is not the first."""

    def merge(self, call, output):
        super().merge(call, output)
        if not output.token_ids and call.versions:
            call.versions.append(output.extra_fields.get("global_steps"))


class ClipsTheLast(Client):
    """Of an answer that fills the context the last token is left out."""

    def merge(self, call, output):
        super().merge(call, output)
        if call.aborts and len(call.prompt) + len(call.ids) == call.context:
            call.ids, call.log_probs = call.ids[:-1], call.log_probs[:-1]
            call.budget = len(call.ids)


WRONG = {
    "log-probs-of-the-last": client(LogProbsOfTheLast, "L1"),
    "log-probs-one-ahead": client(LogProbsOneAhead, "L1"),
    "oldest-is-the-last": client(OldestIsTheLast, "S1"),
    "newest-is-the-first": client(NewestIsTheFirst, "S1"),
    "resumes-without-the-last": client(ResumesWithoutTheLast, "L3", "L1"),
    "sends-a-piece-twice": client(SendsAPieceTwice, "L3", "L1"),
    "aborted-at-the-end-is-done": client(AbortedAtTheEndIsDone, "A10"),
    "once-aborted-for-ever": client(OnceAbortedForEver, "A10"),
    "version-of-nothing": client(VersionOfNothing, "S1"),
    "clips-the-full-context": client(ClipsTheLast, "A2", "B2", "L1"),
}
