"""Every failure that Atelier knows, as a type with a stable code. Adapters subclass these; nothing here does I/O."""

from __future__ import annotations


class AtelierError(Exception):
    """A failure that a person can act on.

    `code` is stable and may be matched by scripts; `fix` says what to do; `transient` says whether the same
    call may succeed later without anybody changing anything.
    """

    code = "ATELIER_ERROR"
    transient = False

    def __init__(self, message: str, *, fix: str = "", code: str | None = None, transient: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        if code is not None:
            self.code = code
        if transient is not None:
            self.transient = transient

    def __str__(self) -> str:
        hint = f" Fix: {self.fix}" if self.fix else ""
        return f"[{self.code}] {self.message}{hint}"


class InvalidInput(AtelierError):
    """Something given by a person or an outside system has the wrong form."""

    code = "INVALID_INPUT"


class NotFound(AtelierError):
    """The named thing does not exist in the outside system."""

    code = "NOT_FOUND"


class StaleInput(AtelierError):
    """An artifact that a step was about to read no longer follows from the current ones."""

    code = "STALE_INPUT"


class Refused(AtelierError):
    """An outside system answered, and said no (permission, protection, a moved head)."""

    code = "REFUSED"


class Unavailable(AtelierError):
    """An outside system did not answer, or answered that it cannot right now."""

    code = "UNAVAILABLE"
    transient = True


class TimedOut(Unavailable):
    """Something took longer than its limit."""

    code = "TIMED_OUT"


class NothingChanged(AtelierError):
    """The agents ended and the change is empty: there is nothing to review, and no pull request is opened."""

    code = "NOTHING_CHANGED"


class CorruptArtifact(AtelierError):
    """Stored bytes do not match the hash they are filed under."""

    code = "CORRUPT_ARTIFACT"


class WorkshopFailed(AtelierError):
    """A workshop cannot be made, or stopped working."""

    code = "WORKSHOP_FAILED"


class ModelAuthFailed(AtelierError):
    """The model endpoint refuses the key."""

    code = "MODEL_AUTH"


class ModelBudgetExceeded(AtelierError):
    """The model endpoint says that the budget is spent: a human must raise it, stop, or deliver what there is."""

    code = "MODEL_BUDGET"


class ModelRefused(AtelierError):
    """The model endpoint refuses the request itself (unknown model, prompt too long)."""

    code = "MODEL_REFUSED"


class ModelUnavailable(Unavailable):
    """The model endpoint did not answer usefully within the time limit."""

    code = "MODEL_UNAVAILABLE"


class ModelSilent(ModelUnavailable):
    """The model was reached and ended its answers, and said nothing in any of them."""

    code = "MODEL_SILENT"
