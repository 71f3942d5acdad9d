"""Messages that propose something, the commands that print them, and how they are followed."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """A message, the command that prints it, and how its proposal is followed."""

    says: str  # a piece of the string in src
    command: str
    files: dict[str, str | None] = field(default_factory=dict)  # None: it is removed
    fill: dict[str, str] = field(default_factory=dict)  # for FILE and its like in the proposal
    take: str = ".*"  # where in the message the proposal stands; nothing: only words are left out
    drop: str = ""  # words of the command that the proposal replaces or leaves out
    before: str = ""  # a command that is run first
    reads: str = ""  # a file that the message is in
    unsealed: bool = False  # as if another user had written the run


def table(column, *cells):
    """Returns a node table `n.csv` with a number and one more column."""
    rows = [f"{'abcd'[place]},{place},{cell}" for place, cell in enumerate((cells * 4)[:4])]
    return {"n.csv": "\n".join([f"id,v,{column}", *rows])}


CHECK = "check edges.csv --nodes n.csv"
TYPED = "check --nodes author=authors.csv --nodes paper=papers.csv"
SMALL = "--set epochs=1 --set dim=8 --device cpu"
PROSE = [f"{one} is a long text with many words in all of it" for one in "wxyz"]
IDS = {"ids.csv": "id\na\nb\nc\nd"}
FIVE = {"n.csv": "id,v\na,1\nb,1\nc,1\nd,2\ne,5"}
SPLIT = [
    f"n{one},{one % 5},{'uw'[one % 2]},{('train', 'val', 'test')[one // 2 % 3]}"
    for one in range(12)
]
DIRECTED = {
    "m.csv": "movie_id,year\n" + "".join(f"{one},{one % 9}\n" for one in range(1, 41)),
    "d.csv": "director_id,born\n" + "".join(f"{one},{one % 7}\n" for one in range(1, 20)),
    "e.csv": "movie_id,director_id\n" + "".join(f"{one},{one % 20 + 1}\n" for one in range(1, 41)),
}
WEIGHTED = {"w.csv": "source,target,w\nn0,n1,1\nn1,n2,2"}
TAGGED = {"t.csv": "id,tag\n" + "".join(f"n{one},{'xy'[one % 2]}\n" for one in range(12))}
AGAIN = "update run --retrain --epochs 1"
DATED = {
    "n.csv": "id,v,at\n" + "".join(f"n{one},{one},2025-01-{one + 1:02}\n" for one in range(12)),
    "e.csv": "a,b,day\n"
    + "".join(f"n{one},n{one // 2},2025-01-{one + 1:02}\n" for one in range(1, 12))
    + "n0,n4,2025-01-20\n",
}
DAYS = f"train e.csv --nodes n.csv --time at --time day --until 2025-01-15 --out dated {SMALL}"
MOVED = f"{DAYS}; update dated --until 2025-01-22"
BARE = "ring.csv --nodes people.csv --ignore topic"
MANY = {
    "n.csv": "id,v,c\n" + "".join(f"{'abcd'[i] if i < 4 else i},{i},c{i}\n" for i in range(1100))
}
AGES = {
    "n.csv": "id,v,c\n"
    + "".join(f"{'abcd'[i] if i < 4 else i},{i},{18 + i % 25}\n" for i in range(1000))
}
ROWS = [
    # Tables: columns
    Row("has a comma before three", CHECK, table("c", '"1,234"', '"2,345"')),
    Row("holds numbers with the decimal mark", CHECK + " --strict", table("c", '"1,5"', '"2,25"')),
    Row("--date-format …", CHECK, table("c", "01/02/2020", "03/04/2021")),
    Row("is read as a number; if", CHECK, table("c", "01", "20"), take="if these are codes.*?c "),
    Row("if it parts thousands", CHECK, table("c", "30", "1.020"), take="if it parts.*"),
    Row(
        "are rounded to multiples of",
        CHECK,
        table("c", "1700000001", "1700000002"),
        take="or leave.*",
    ),
    Row("holds dates: read them", CHECK + " --strict", table("c", "21/02/2020", "03/04/2021")),
    Row("holds dates: read it", CHECK + " --strict", table("c", "2020-02-21", "2021-04-03")),
    Row(
        "leave --decimal out if",
        CHECK + " --decimal ,",
        table("c", "1.5", "2.5"),
        take="",
        drop="--decimal ,",
    ),
    Row(
        "is not a number with the decimal mark",
        CHECK + " --decimal ,",
        table("c", "1.5", '"2,5"'),
        take="correct it, .*",
    ),
    Row("read it with --text", CHECK, table("c", *PROSE)),
    Row("encode it with --one-hot …, or …", CHECK + " --strict", table("c", "u", "w")),
    Row("encode it with --one-hot …, or read", CHECK, table("c", *"stuv")),
    Row("…: --one-hot: column … has no", CHECK + " --one-hot c", table("c", "")),
    Row("--text: column", CHECK + " --text c", table("c", "")),
    Row("categories; group them first", CHECK + " --one-hot c", MANY),
    Row(
        "leave the column out with --ignore …",
        CHECK + " --date c",
        table("c", "x", "y"),
        take="out .*",
    ),
    Row("has no values; leave the column out", CHECK + " --strict", table("c", "")),
    Row("does not fit in a float32", CHECK, table("c", "1e300", "2")),
    Row("is missing; missing values", CHECK + " --missing refuse", table("c", "", "2")),
    Row("is not a number; correct it", CHECK, table("c", "1", "1", "1", "x")),
    Row("would become a feature", CHECK, table("label", "1", "2")),
    Row("would become a feature", CHECK, table("split", "train", "test", "val")),
    Row(
        "contain …; if it",
        CHECK + " --label t",
        table("t", "u;w", "w;u", "u", "w"),
        take="pass .*?'.*?'",
    ),
    # Tables: ids, edges, and what stands beside them
    Row("keep one with --duplicates", CHECK, {"n.csv": "id,v\na,1\na,2\nb,1\nc,1\nd,2"}),
    Row(
        "pass --unknown-edges add", CHECK, {"n.csv": "id,v\na,1\nb,1\nc,1"}, take="or pass .*?,.*?,"
    ),
    Row(
        "no node table; pass",
        "check edges.csv --label t",
        table("t", "u"),
        {"--nodes": "--nodes n.csv"},
    ),
    Row(
        "if it has classes, pass",
        CHECK + " --label c",
        table("c", "1.5", "2.5"),
        take="if it has classes.*",
    ),
    Row(
        "if it is a number to predict, pass",
        CHECK + " --label c",
        AGES,
        take="if it is a number to predict.*",
    ),
    Row(
        "no labels; pass --label",
        CHECK + " --label-separator /",
        table("t", "u/w"),
        {"--label": "--label t"},
        "pass .*",
    ),
    Row(
        "no tags; pass",
        CHECK + " --tag-columns id,tag",
        {**FIVE, "t.csv": "id,tag\na,x\nb,y"},
        {"FILE": "t.csv"},
    ),
    Row(
        "no vectors; pass",
        CHECK + " --vector-ids ids.csv",
        FIVE | {"ids.csv": "id\na\nb\nc\nd"},
        {"FILE.npy": "v.npy"},
    ),
    Row("nobody knows whose", "check edges.csv --vectors v.npy", IDS, {"FILE": "ids.csv"}),
    Row("there must be one for each", CHECK + " --vectors v.npy", FIVE | IDS, {"FILE": "ids.csv"}),
    Row("the graph has no features", "check edges.csv", FIVE, {"--nodes with": "--nodes n.csv"}),
    Row(
        "would use it",
        "check e.csv --features structural",
        {"e.csv": "source,target,weight\na,b,1\nb,c,2"},
        take="not used.*?use it",
    ),
    Row(
        "with decimal commas",
        "check e.csv --features structural --weight w",
        {"e.csv": 'source,target,w\na,b,"1,5"\nb,c,2'},
    ),
    Row(
        "with whole numbers, read it as",
        CHECK,
        {"n.csv": "id,v\n1.0,1\n2.0,1", "edges.csv": "source,target\n1,2"},
        take="read it as .*",
        drop="--nodes n.csv",
    ),
    Row(
        "say how its dates",
        CHECK + " --date c",
        table("c", "2020 Feb 3", "2021 Mar 4"),
        {"%d/%m/%Y": "'%Y %b %d'"},
        "such as --date.*?, or",
    ),
    Row(
        "is …; leave the column",
        """check edges.csv --nodes "SELECT id, v, {'a': 1} AS c FROM 'n.csv'\"""",
        FIVE,
        take="out with .*?;",
    ),
    Row(
        "all need the same length",
        "check edges.csv --nodes \"SELECT id, v, CASE id WHEN 'a' THEN [1] ELSE [1, 2] END AS c "
        "FROM 'n.csv'\"",
        FIVE,
        take="out with .*?;",
    ),
    Row("--ignore …", CHECK + " --one-hot c", table("c", "")),
    Row(
        "another column is given",
        CHECK,
        {"n.csv": "id,v,w\na,1,3\nb,2,4\nc,3,5\nz,4,6"},
        {"--id-column: 'v', 'w'": f"graphcl {CHECK} --ignore id --unknown-edges add --id-column w"},
        "--id-column: 'v', 'w'",
    ),
    Row(
        "which column has the ids? Edges",
        "check knows.csv --nodes p.csv",
        {"p.csv": "id,name\n1,7\n1,1\n2,2\n3,8", "knows.csv": "who,whom\n1,2\n2,1"},
        take="say it: --id-column name",
    ),
    Row(
        "some several times; say it",
        "check knows.csv --nodes p.csv",
        {"p.csv": "id,name\n1,7\n1,1\n2,2\n3,8", "knows.csv": "who,whom\n1,2\n2,1"},
        {"or ": "graphcl check knows.csv --nodes p.csv "},
        "or --id-column id --duplicates first",
    ),
    Row(
        "Of what edges name in",
        "check e.csv --nodes n.csv",
        {
            "n.csv": "id,row,age\n1,1,30\n2,2,41\n4,3,22\n5,4,22\n",
            "e.csv": "source,target\n1,2\n2,3\n3,1\n",
        },
        take="say it: --id-column row",
    ),
    Row(
        "no node table with columns",
        "check num.csv --label t --nodes v.npy",
        {"num.csv": "source,target\n0,1\n2,3", "n.csv": "id,v,t\n0,1,x\n1,2,y\n2,3,x\n3,4,y"},
        {"--nodes": "--nodes n.csv"},
        drop="--nodes v.npy",
    ),
    Row(
        "pass --features both",
        "check edges.csv --features structural --tags t.csv",
        {"t.csv": "id,tag\na,x\nb,y"},
        take="pass .*",
    ),
    # Typed tables
    Row(
        "is a feature; --weight",
        TYPED + " --edges writes=w.csv",
        {"w.csv": "author,paper,weight\na0,p0,1\na1,p1,2"},
        take="--weight .* makes",
    ),
    Row(
        "who has them all",
        "check --nodes movie=m.csv --nodes director=d.csv --edges directed=e.csv",
        DIRECTED,
        {"TYPE": "movie"},
        "who has them all: .*?;",
    ),
    Row(
        "does not say it; give each",
        "check --nodes author=x.csv --nodes paper=x.csv e.csv --relation r",
        {"x.csv": "id,v\n1,1\n2,2", "e.csv": "p,q,r\n1,2,k\n2,1,k"},
        {"with a query": """\"author:k:paper=SELECT p, q FROM 'e.csv' WHERE r = 'k'\""""},
        "give each .*? query",
        drop="e.csv --relation r",
    ),
    Row(
        "ends are nodes of which types",
        "check --edges knows=aa.csv",
        {},
        {"TYPE=FILE": "author=authors.csv"},
    ),
    Row(
        "fills in types without",
        TYPED + " --edges writes=writes.csv --features structural",
        take="",
        drop="--features structural",
    ),
    Row(
        "of which type are its ids? …",
        TYPED + " --edges tagged=t.csv",
        {"t.csv": "paper,tag\np0,x\np1,y", "g.csv": "id\nx\ny"},
        {"=FILE": "=g.csv"},
    ),
    Row(
        "say it, such as --edges",
        "check --nodes author=x.csv --nodes paper=x.csv --edges r=e.csv",
        {"x.csv": "id,v\n1,1\n2,2", "e.csv": "p,q\n1,2\n2,1"},
        drop="--edges r=e.csv",
    ),
    Row(
        "so nothing says which types",
        TYPED + " --edges writes=writes.csv --edges r=e.csv",
        {"e.csv": "p,q\n"},
        {"SOURCE": "author", "TARGET": "paper"},
        drop="--edges r=e.csv",
    ),
    Row(
        "say of which: --label",
        TYPED + " --edges writes=writes.csv --label year",
        drop="--label year",
    ),
    # Building and training
    Row(
        "given with --parts",
        f"build --edges {BARE} --order hash --out s",
        fill={"--parts": "--parts 2"},
        take="--parts",
    ),
    Row(
        "is not possible: …; use mode",
        f"train {BARE} --set encoder=gat --set mode=sampled --out new {SMALL}",
        fill={"mode=full": "--set mode=full"},
        take="use mode=full",
        drop="--set mode=sampled",
    ),
    Row(
        "damaged; train again",
        f"train ring.csv --nodes people.csv --label topic --resume --out run {SMALL}",
        {"run/result.json": "{}"},
        take="--overwrite",
    ),
    Row(
        "Test labels were not read",
        f"tune ring.csv --nodes people.csv --label topic --trials 1 --out t {SMALL}",
        fill={"GRAPH": BARE, "THIS_FILE": f"t/recipe.toml --out new {SMALL}"},
        take="graphcl train .*?FILE",
        reads="t/recipe.toml",
    ),
    # Times
    Row(
        "not with the ages of edges",
        "check e.csv --nodes n.csv --time at --time day --features both",
        DATED,
        take="leave these out.*",
    ),
    Row(
        "no table has times",
        "check e.csv --nodes n.csv --until 2025-01-15",
        DATED,
        fill={"--time": "--time day"},
        take="name their columns.*",
    ),
    Row(
        "its tables have no times",
        "update run --remove-edges cut.csv --until 2025-01-10",
        {"cut.csv": "source,target\nn0,n1"},
        take="",
        drop="--until 2025-01-10",
    ),
    Row(
        "moves it forward, and --rollback",
        "update dated --until 2025-01-10",
        DATED,
        take="and --rollback",
        drop="--until 2025-01-10",
        before=MOVED,
    ),
    Row(
        "given with --evaluate",
        "links dated --after 2025-01-15",
        DATED,
        take="with --evaluate",
        before=MOVED,
    ),
    # Runs
    Row(
        "graphcl predict RUN",
        "report run --map pca",
        fill={"RUN": "run --all"},
        take="graphcl predict RUN",
        reads="run/report.html",
    ),
    Row(
        "is a run, not a store",
        "check run",
        fill={" run": " run --map pca"},
        take="graphcl report .*",
    ),
    Row("given with --to card", "export run --to onnx --licence mit", take="--to card"),
    Row("given with --rollback", "update run 0", take="--rollback", before=AGAIN),
    Row(
        "graphcl update … --rollback",
        "neighbors run n1",
        {"run/versions/current": "x"},
        take="graphcl .*",
    ),
    Row(
        "graphcl update … --rollback",
        "neighbors run n1",
        {"run/versions/current": "9"},
        take="graphcl .*",
    ),
    Row("and … more; --out", "predict run --all", fill={"--out": "--out p.csv"}, take="--out .*"),
    Row("has no split", "predict run --all --learn train", take="", drop="--learn train"),
    Row(
        "hides those of test",
        "predict split",
        {"n.csv": "\n".join(["id,v,topic,split", *SPLIT])},
        take="--learn train",
        before=f"train ring.csv --nodes n.csv --label topic --split split --out split {SMALL}",
    ),
    Row("do without: --without", "report run --map pca", take="do without: .*", unsealed=True),
    Row(
        "shards of parts are passed",
        "neighbors run n1",
        {"run/embeddings.npy": None},
        take="graphcl embed .*",
    ),
    Row(
        "update: nothing to do",
        "update stored --graph st",
        take="or --retrain",
        before=f"build --edges {BARE} --out st; train st --out stored {SMALL}",
    ),
    Row(
        "edges have weights; name",
        "update stored --edges w.csv",
        WEIGHTED,
        {"--weight": "--weight w"},
        before="build --edges w.csv --nodes people.csv --ignore topic --weight w --out st; "
        f"train st --out stored {SMALL}",
    ),
    Row(
        "--tags needs --nodes",
        "update tagged --edges ring.csv --tags t.csv",
        TAGGED,
        {"--nodes": "--nodes people.csv"},
        "needs --nodes",
        before=f"train {BARE} --tags t.csv --out tagged {SMALL}",
    ),
    Row(
        "has changed since the training",
        "update run --edges e.csv",
        {"e.csv": "source,target\nn0,n5"},
        {"graphcl evaluate": "graphcl evaluate run"},
        "graphcl evaluate",
        reads="run/versions/1/result.json",
    ),
    Row(
        "already exists; pass", "cluster run --out c.csv", {"c.csv": "id"}, take="pass --overwrite"
    ),
    Row(
        "already holds a",
        f"train ring.csv --nodes people.csv --label topic --out run {SMALL}",
        take="pass --overwrite",
    ),
    Row(
        "left out with --evaluate", "links run --evaluate --out l.csv", take="", drop="--out l.csv"
    ),
    Row("given: --nodes", "update run", take="or --retrain"),
    Row("given with --retrain", "update run --nodes people.csv --epochs 1", take="with --retrain"),
    Row("leave --weight out", "update run --edges ring.csv --weight w", take="", drop="--weight w"),
    Row("--all predicts", "predict run", take="--all"),
    Row(
        "has no labels; give",
        "predict bare",
        {"l.csv": "id,label\nn0,u\nn1,u\nn2,w\nn3,w"},
        {"FILE": "l.csv"},
        "--labels FILE",
    ),
    Row("name one: --type", "cluster typed"),
    Row(
        "keys of the recipe are given by",
        "train ring.csv --nodes people.csv --label topic --epoch 1 --out new",
        fill={"VALUE": "1"},
        take="--set .*",
        drop="--epoch 1",
    ),
    Row("name one: --relation", "links typed", take="name one: .*"),
    Row(
        "--relation is of a graph with types",
        "links run --relation buys",
        take="",
        drop="--relation buys",
    ),
    Row("name one of …: --type", "embed typed --rows 0:2 --out new.npy", take="--type .*"),
]
PROCESSES = "needs several processes or a store in parts"
MEMORY = "needs a machine with too little memory"
NOTHING = "nothing to paste: it says what is wrong, or what a value looks like"
DESCRIBES = "describes: help, a page, a piece of SQL"
# Strings whose proposal is not run, each by its beginning, and why.
REASONS = {
    "pieces of messages that are put together, whose wholes are in ROWS and in tests of tables": (
        "--duplicates first or --duplicates last",
        "--edges …:",
        "--id-column …",
        "--label: … is a column of …; …",
        "--nodes TYPE=FILE",
        "--one-hot: column … … with",
        "…: --tag-columns: … cannot be two columns",
        "--text: …",
        "--time: … holds numbers, and other times are dates; all are to be of one kind",
        "--vector-ids FILE",
        "…: --vector-ids: … for …",
        "give each relation as --edges with a query",
        "… --ignore …",
        "…--duplicates first",
        "…: --label: … has",
    ),
    "a GPU without Triton, which is not here": ("sampled training on a GPU needs Triton",),
    "an object store, which a command of another program writes": ("…://…: nothing is written",),
    PROCESSES: (
        "…: .npy shards",
        "embed the parts: ",
        ", or pass --graph …",
        "go on with the same command and --resume",
        "pass --processes …",
        "the store in parts that",
        "another process was silent",
        "graphcl train: rank",
    ),
    MEMORY: (
        "try --set mode=sampled",
        "a process needs about",
        "export: the weights exceed",
        "…: not enough memory",
        "encoder=mean mode",
        "batch_nodes=…",
        "device=cpu reads",
        "…: could not be written",
    ),
    "the service would not end": ("serve: … can be reached",),
    "installs": ("… needs an extra", "a UMAP map", "watch it with: tensorboard"),
    "run by test_a_proposal_works_when_it_is_pasted": ("graphcl embed …", "--nodes …"),
    "run by test_advice_works_when_it_is_pasted": ("the same training with --method raw",),
    "run by test_an_interrupted_training_goes_on": (
        "graphcl train: interrupted",
        "saved in …",
        "…: holds an unfinished",
    ),
    "run by test_vectors_are_saved_as_it_is_said": ("…: --vectors takes an .npy file",),
    NOTHING: (
        "…: its rows of … are of another graph; choose another --out",
        "embed: --rows must",
        "--set takes",
        "train: --cache must",
        "--rows, --id and",
        "embed: --new joins",
        "--node, --pairs",
        "--rollback and",
        "…: is a file; --out",
        "embed: --to must",
        "given with --ssl-certfile",
        "left out if --edges",
        "A list of edges, an",
        "--set …: none",
        "…: --label: column … has no values",
        "…: --tags: has one column",
        "--tags: …; column … must hold ids of nodes, such as …",
        "…: --tags: has no rows",
        "--tags: column … has",
        "--tags: values of a node",
        "…: --relation: column",
        "--edges: … is given",
        "…: --vectors: expected",
        "…: --vector-ids: expected",
        "train: --checkpoint-every",
        "…: contains trials",
        "--edges SOURCE:NAME",
        "bug: …",
        "…: does not say which graph it was trained on",
        "--evaluate and --after",
        "--until: times are",
        "given with --type and --seed",
        "left out with --until",
        "…: no label came after",
        "left out with --precision",
        "--cost: must be two",
        "predict: --precision",
        "--shares: must be",
    ),
    "followed in tests/answers/test_predicted.py": ("… is better here",),
    DESCRIBES: (
        "A folder of shards",
        "Train an encoder",
        "The columns of --tags",
        "An .npy with",
        "A store, whole",
        "The file, .npy",
        "What ranks",
        "Of the linked",
        "Pairs that are",
        "Decides which",
        "A dataset (",
        "Of --retrain",
        "With --rollback",
        "graphcl run",
        "graphcl serve",
        "graphcl tune",
        "graphcl training row",
        '"graphcl row"',
        "With --after",
        "--evaluate by pairs",
    ),
}
