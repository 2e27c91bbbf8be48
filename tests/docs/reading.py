"""Documents as a reader follows them: their blocks, run from top to bottom in one directory.

A comment before a block says what it is, where it is not simply the next thing to do:

    <!-- file: shop.py -->          the reader saves it under this name
    <!-- output -->                 the command before it prints these lines
    <!-- statement: claim -->       the statement of this name in outbox/store/statements.py
    <!-- not run: REASON -->        only parsed
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

__all__ = ["ROOT", "Block", "Reader", "blocks", "documents"]

ROOT = Path(__file__).parents[2]

BLOCK = re.compile(
    r"^(?:<!-- (?P<comment>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: Path
    line: int
    language: str
    comment: str
    code: str

    @property
    def role(self) -> str:
        """What the comment says before its colon."""
        return self.comment.partition(":")[0]

    @property
    def argument(self) -> str:
        return self.comment.partition(":")[2].strip()

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def documents() -> list[Path]:
    """All of them, README first."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    text = document.read_text("utf-8")
    found = [
        Block(
            document, text.count("\n", 0, match.start()) + 1, match["language"], match["comment"] or "", match["code"]
        )
        for match in BLOCK.finditer(text)
    ]
    assert len(found) * 2 == len(re.findall(r"^```", text, re.MULTILINE)), f"{document}: a block is not understood"
    return found


@dataclass
class Reader:
    """Does what a document says, with the test's servers in place of those that it names.

    Parameters:
        directory: where the reader works.
        database: `postgresql://` of the test's database.
        names: what the document says: what the test has instead.
    """

    directory: Path
    database: str
    names: dict[str, str] = field(default_factory=dict)
    printed: str = ""

    def __post_init__(self) -> None:
        self.names["//app:secret@localhost/shop"] = self.database.removeprefix("postgresql:")
        self._exports = self.directory.with_name(self.directory.name + ".exports")
        self.directory.mkdir(exist_ok=True)

    def follow(self, document: Path) -> int:
        """Do every block of it; returns how many were run."""
        return sum([self.do(block) for block in blocks(document)])

    def do(self, block: Block) -> bool:
        """Do what a block says; returns whether it was run."""
        code = self.translate(block.code)
        match block.role, block.language:
            case "file", _:
                path = self.directory / block.argument
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(code)
                return False
            case "output", _:
                lines = [line for line in code.splitlines() if line not in self.printed]
                assert not lines, f"{block}: not printed: {lines}\n{self.printed}"
                return False
            case ("not run" | "statement" | "attempt", _) | (_, "text" | "toml"):
                return False
            case _, "bash":
                self._run(block, ["bash", "-c", self._remembering(code)])
            case _, "python":
                self._run(block, ["bash", "-c", f'{self._recall}\nexec python -c "$0"', code])
            case _, "sql":
                self._query(code)
            case _:
                raise AssertionError(f"{block}: nobody knows how to run {block.language!r}")
        return True

    def translate(self, text: str) -> str:
        """The text with the test's names. A relay that would run until it is stopped ends when all is published."""
        for name, ours in self.names.items():
            text = text.replace(name, ours)
        return re.sub(
            r"^(outbox-relay (?=--)(?!.*--(?:drain|version|help)).*)$", r"\1 --drain", text, flags=re.MULTILINE
        )

    def _remembering(self, code: str) -> str:
        """What is exported in one block is there in the next."""
        return f"set -euo pipefail\n{self._recall}\n{code}\nexport -p > '{self._exports}'"

    @property
    def _recall(self) -> str:
        return f"[ ! -f '{self._exports}' ] || . '{self._exports}'"

    def _run(self, block: Block, command: list[str]) -> None:
        programs = Path(sys.executable).parent
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "PYTEST_"))}
        environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        run = subprocess.run(
            command,
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        self.printed = run.stdout + run.stderr
        assert run.returncode == 0, f"{block} ended with {run.returncode}:\n{self.printed}"
        assert "Traceback" not in self.printed, f"{block}:\n{self.printed}"

    def _query(self, code: str) -> None:
        with psycopg.connect(self.database, autocommit=True) as connection:
            cursor = connection.execute(code)  # type: ignore[call-overload]  # the text of a document
            self.printed = "\n".join(map(str, cursor.fetchall())) if cursor.description else ""
