"""Keys: letters become actions, a question takes what is typed, and nothing typed there is a command."""

from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.local.screen.keys import MAX_TYPED, Key, Keyboard, Prompt, key_help, letters_of


async def act():
    return None


async def answered(text):
    return f"<{text}>"


KEYS = {"p": Key("pause", act), "c": Prompt("caps", "how much?", answered)}


def pressed(keyboard, text):
    return [action for letter in text if (action := keyboard.press(letter)) is not None]


def test_a_key_is_its_action_and_other_letters_are_nothing():
    assert pressed(Keyboard(KEYS), "xpP ") == [act]


def test_the_help_names_every_key():
    assert key_help(KEYS) == "p pause  c caps"


def test_an_answer_is_edited_and_sent_with_enter():
    keyboard = Keyboard(KEYS)
    assert pressed(keyboard, "c5p9\x7f") == []
    assert keyboard.typing == "how much? 5p"
    [action] = pressed(keyboard, "\r")
    assert (action.func, action.args) == (answered, ("5p",))
    assert keyboard.typing is None


def test_escape_or_an_empty_answer_asks_nothing():
    for typed in ("c5\x1b", "c\r", "c  \n", "c55\x15\r"):
        keyboard = Keyboard(KEYS)
        assert pressed(keyboard, typed) == []
        assert keyboard.typing is None


def test_an_answer_is_bounded():
    keyboard = Keyboard(KEYS)
    pressed(keyboard, "c" + "1" * 1000)
    assert len(keyboard.typing) == len("how much? ") + MAX_TYPED


def test_arrows_and_function_keys_are_not_letters():
    assert letters_of(b"\x1b[Ap\x1bOP\x1b[1;5Cq\xff\xc3\xa9") == ["p", "q", "é"]
    assert letters_of(b"\x1b") == ["\x1b"]


@given(st.text(max_size=60), st.binary(max_size=60))
def test_any_typing_leaves_the_keyboard_in_a_sound_state(text, data):
    keyboard = Keyboard(KEYS)
    for letter in [*text, *letters_of(data)]:
        keyboard.press(letter)
        assert keyboard.typing is None or keyboard.typing.isprintable()
