"""JSONPath templates and kubectl's answers to them."""

LIST = {
    "kind": "List",
    "apiVersion": "v1",
    "metadata": {"resourceVersion": ""},
    "items": [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "default", "labels": {"example.com/zone": "z1", "app": "web"}},
            "data": {"x-y": "1", "text": "one two", "both": "same"},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "b", "namespace": "default", "labels": {"app": "db"}},
            "data": {"x-y": "2", "both": "same"},
        },
    ],
}
CASES = [
    ("{.items[*].metadata.name}", "a b"),
    ("{.items[0].data.x-y}", "1"),
    ("{$.items[-1:].metadata.name}", "b"),
    ("{.items[0:2].metadata.name}", "a b"),
    ("{@.kind}", "List"),
    ("names: {.items[*].metadata.name}!", "names: a b!"),
    ('{range .items[*]}{.metadata.name}{"\\t"}{.data.x-y}{"\\n"}{end}', "a\t1\nb\t2\n"),
    ("{range .items[*]}[{.metadata.name}, {.data.x-y}] {end}", "[a, 1] [b, 2] "),
    ("{.items[*].metadata.labels.example\\.com/zone}", "z1"),
    ("{.items[?(@.metadata.name=='b')].data.x-y}", "2"),
    ('{.items[?(@.metadata.labels.app == "web")].metadata.name}', "a"),
    ('{.items[?(@.data.x-y != "1")].metadata.name}', "b"),
    ("{..app}", "web db"),
    ("{.items[*].nothing}", ""),
    ("{.items[0].metadata.labels}", '{"app":"web","example.com/zone":"z1"}'),
    ("{.items[0]['kind','apiVersion']}", "ConfigMap v1"),
    ("{.items[0].data.text}{' and '}{.items[1].data.both}", "one two and same"),
]
