import pytest

from helpers.errors import refused
from smht.comparison.budget import Budget, Limit, parse_budgets


@pytest.mark.parametrize(
    ("texts", "size", "length"),
    [
        (["parameters=0.8M"], Limit("parameters", 800_000), None),
        (["parameters=800000,tokens=1.5M"], Limit("parameters", 800_000), Limit("tokens", 1_500_000)),
        (["multiplications=2M", "time=2m"], Limit("multiplications", 2_000_000), Limit("time", 120)),
        (["width=256", "time=1h30m"], Limit("width", 256), Limit("time", 5400)),
        (["time=0.5"], None, Limit("time", 0.5)),
        (["width=0.3k"], Limit("width", 300), None),
        (["training-multiplications=3e12"], None, Limit("training-multiplications", 3 * 10**12)),
        (["training-multiplications=1.5e+3T"], None, Limit("training-multiplications", 15 * 10**14)),
        (["tokens=10k", "parameters = 1B "], Limit("parameters", 10**9), Limit("tokens", 10_000)),
        (["tokens=10K", "parameters=0.1G"], Limit("parameters", 10**8), Limit("tokens", 10_000)),
    ],
)
def test_budgets(texts: list[str], size: Limit | None, length: Limit | None) -> None:
    assert parse_budgets(texts) == Budget(size, length)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([], ("give a --budget", "parameters=0.8M", "time=2m")),
        ([","], ("give a --budget",)),
        (["paramaters=1M"], ("no budget 'paramaters'", "did you mean parameters?")),
        (["=1M"], ("no budget ''", "choose from")),
        (["1M"], ("no budget '1M'",)),
        (["tokens"], ("'tokens' says no amount", "tokens=1.5M")),
        (["parameters=1M", "width=256"], ("parameters and width are both budgets for the size",)),
        (["parameters=1M,parameters=2M"], ("parameters and parameters are both budgets for the size", "give one")),
        (["tokens=1M", "time=2m"], ("tokens and time are both budgets for the length of training",)),
        (["tokens="], ("tokens= is no amount",)),
        (["tokens=-1"], ("tokens=-1 is no amount", "1.5M")),
        (["tokens=many"], ("tokens=many is no amount",)),
        (["tokens=nan"], ("tokens=nan is no amount",)),
        (["tokens=inf"], ("tokens=inf is no amount",)),
        (["tokens=1,500,000"], ("no budget '500'",)),
        (["tokens=2m"], ("tokens=2m is no amount: 2M is millions",)),
        (["tokens=0"], ("tokens=0 must be from 1 to 1e+24",)),
        (["parameters=0.5"], ("parameters=0.5 must be from 1",)),
        (["parameters=1e999"], ("must be from 1 to 1e+24",)),
        (["width=25.5"], ("width=25.5 must be a whole number",)),
        (["time=soon"], ("budget time=soon", "'soon' is no duration")),
        (["time=0s"], ("'0s' is no duration",)),
        (["time=-2m"], ("'-2m' is no duration",)),
    ],
)
def test_budgets_that_are_none(texts: list[str], says: tuple[str, ...]) -> None:
    with refused(*says):
        parse_budgets(texts)


def test_budgets_for_a_person() -> None:
    assert str(Limit("parameters", 800_000)) == "800,000 parameters, embeddings included"
    assert str(Limit("time", 120)) == "2 min of training"
    assert str(Limit("time", 0.25)) == "0.25 s of training"
    assert str(Limit("training-multiplications", 3e12)) == "3,000,000,000,000 multiply-adds in all"
