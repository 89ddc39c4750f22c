"""The command line: ``fusec show``, ``bench``, ``doctor``. May import everything below it.

Exit codes: 0 done, 2 a mistake in what was typed (the diagnostic is on stderr), 70 a bug in fusec,
130 after Ctrl-C, 141 when the reader of a pipe went away. Help loads neither torch nor triton.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusec.errors import FusecError, InternalError, did_you_mean

if TYPE_CHECKING:
    import typer

USAGE, INTERNAL, INTERRUPTED, BROKEN_PIPE = 2, 70, 130, 141
_NO_ROOM = "make room, or write to another disk"
_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _NO_ROOM),
    errno.EBADF: "standard output is closed; send it to a file, or to /dev/null",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` without ``arguments``) and return its exit code."""
    _open_streams()
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _guarded(arguments)


def _guarded(arguments: Sequence[str] | None) -> int:
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except FusecError as error:
        _complain(str(error))
        return INTERNAL if isinstance(error, InternalError) else USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _close_stdout()
        return BROKEN_PIPE
    except SystemExit as stop:  # typer's answer to a broken pipe, whatever we ask of it
        if not isinstance(stop.__context__, OSError):
            raise
        _close_stdout()
        return BROKEN_PIPE
    except OSError as error:
        hint = _HINTS.get(error.errno or 0)
        if hint is None:
            return _internal(error)
        _close_stdout()
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"error: {where}{error.strerror}\nhint: {hint}")
        return USAGE
    except Exception as error:  # the last line of defence: no traceback reaches a user unasked
        if _out_of_memory(error):
            _complain("error: not enough memory\nhint: smaller inputs, as in -i x=1024x1024")
            return USAGE
        return _internal(error)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    import typer

    app = build_app()
    # BadParameter < UsageError < ClickException, which this typer may keep in click or in itself.
    usage_error = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    assert issubclass(usage_error, Exception)
    try:
        given = sys.argv[1:] if arguments is None else list(arguments)
        code = app(args=given or ["--help"], prog_name="fusec", standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except typer.Exit as finished:
        return finished.exit_code
    except usage_error as error:
        _complain(_usage_text(error, given))
        return USAGE
    return code if isinstance(code, int) else 0


def build_app() -> typer.Typer:
    """The commands, one module each."""
    import typer

    from fusec.cli import bench, doctor, ops, show

    app = typer.Typer(
        name="fusec",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for module in (show, bench, doctor, ops):
        module.register(app)

    @app.callback()
    def top(
        version: bool = typer.Option(
            False, "--version", callback=_version, is_eager=True, help="Show the version."
        ),
    ) -> None:
        """Turn a formula into one fast kernel that can be read."""

    return app


def _version(wanted: bool) -> None:
    if not wanted:
        return
    import typer

    from fusec.version import __version__

    typer.echo(f"fusec {__version__}")
    raise typer.Exit


def _usage_text(error: Exception, given: Sequence[str]) -> str:
    """What typer says of a wrong command line, in the form of every other error of fusec."""
    # typer.BadParameter and its relatives have these; their base class is not part of typer's API.
    message = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
    possible: Sequence[str] = getattr(error, "possibilities", None) or ()
    message = message.partition(" (Possible options")[0].partition(" Did you mean")[0].rstrip(".")
    lines = [f"error: {message[:1].lower()}{message[1:]}"]
    option = getattr(error, "option_name", "")
    context = getattr(error, "ctx", None)
    hint = did_you_mean(option, possible) if option else _command_hint(message, context)
    # `-sum(x)` reads as the option -s with the value um(x), and leaves no formula.
    taken = "missing argument" in lines[0] and any(re.match(r"-[a-z]\w*\W", g) for g in given)
    command = getattr(context, "command", None)
    takes = any(p.name == "formula" for p in getattr(command, "params", ()))
    if hint is None and takes and (option.startswith("-") or taken):
        hint = "a formula that begins with '-' goes after '--', as in: fusec show -- '-x'"
    if hint is None:
        hint = f"see {context.command_path if context else 'fusec'} --help"
    return "\n".join((*lines, f"hint: {hint}"))


def _command_hint(message: str, context: object) -> str | None:
    """The command that was meant, for typer's complaint about one that does not exist."""
    commands: dict[str, object] = getattr(getattr(context, "command", None), "commands", {})
    quoted = message.split("'")
    return did_you_mean(quoted[1], commands) if commands and len(quoted) > 2 else None


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning without the line of code that gave it."""
    _complain(f"warning: {message}")


def _out_of_memory(error: Exception) -> bool:
    """Whether PyTorch found no room for a tensor; on the CPU that is a plain RuntimeError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    signs = ("can't allocate memory", "Storage size calculation overflowed")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens
        print(text, file=sys.stderr)


def _internal(error: Exception) -> int:
    from fusec import settings

    if settings.get().debug:
        import traceback

        traceback.print_exc()
    else:
        summary = " ".join(str(error).split())[:200]
        _complain(
            f"fusec: internal error: {type(error).__name__}: {summary}; "
            "set FUSEC_DEBUG=1 for the traceback"
        )
    return INTERNAL


def _open_streams() -> None:
    """Stand-ins for streams that whoever started this process has closed. Writing to standard
    output fails then, as in any program; and no file that is opened later is taken for a stream.
    """
    for stream, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, mode)  # the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


def _close_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain either."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
