package planted

// fabricBugs are bugs of a provider's access checks.
var fabricBugs = []bug{
	{
		name: "AnyCapability", why: "a verb is performed whatever capability it shows",
		edits: []edit{{
			file: "rdma/tcp/capability.go",
			old:  " || !grants[v.slot].cap.equal(v.cap) {",
			new:  " {",
		}},
		caught: []test{{"rdma/tcp", "TestVerbsOutsideAGrant", "of another connection: <nil>, status 1"}},
	},
	{
		name: "IgnoreRight", why: "a verb is performed although its capability does not allow it",
		edits: []edit{{
			file: "rdma/tcp/capability.go",
			old:  "	if g.access&need == 0 {\n",
			new:  "	if g.access&need == 0 && false {\n",
		}},
		caught: []test{
			{"rdma/tcp", "TestReaderCannotWrite", "reader: WRITE has status 1 and changed memory: true"},
			{"rdma/tcp", "FuzzAgent", "without a grant to write changed"},
		},
	},
}

// memberBugs are bugs of the stores of membership.
var memberBugs = []bug{
	{
		name: "BlindSwap", why: "the map of a cluster is replaced whatever its epoch",
		edits: []edit{
			{
				file: "internal/member/local.go",
				old:  "	if current != expected {\n",
				new:  "	if current != expected && false {\n",
			},
			{
				file: "internal/member/etcd/store.go",
				old:  "	if current != expected {\n",
				new:  "	if current != expected && false {\n",
			},
			{
				file: "internal/member/etcd/store.go",
				old:  "clientv3.Compare(clientv3.ModRevision(key), \"=\", revision)\n",
				new:  "clientv3.Compare(clientv3.ModRevision(key), \">\", -1)\n	_ = revision\n",
			},
		},
		caught: []test{
			{"internal/member", "TestConformance/Swap", "second first map: error <nil>"},
			{"internal/member", "TestConformance/Contenders", "contender|after [0-9]+ changes"},
			{"internal/member/etcd", "TestConformance/Suite/Swap", "second first map: error <nil>"},
			{"internal/member/etcd", "TestConformance/Suite/Contenders", "contender|after [0-9]+ changes"},
		},
	},
	{
		name: "JoinOver", why: "a server takes an index that a live server of another instance holds",
		edits: []edit{
			{
				file: "internal/member/local.go",
				old:  "		if h.server.Instance != server.Instance {\n",
				new:  "		if h.server.Instance != server.Instance && false {\n",
			},
			{
				file: "internal/member/etcd/lease.go",
				old:  "			if r.Instance != server.Instance {\n",
				new:  "			if r.Instance != server.Instance && false {\n",
			},
		},
		caught: []test{
			{"internal/member", "TestConformance/JoinTakesAnIndex", "index of another instance: error <nil>"},
			{"internal/member/etcd", "TestConformance/Suite/JoinTakesAnIndex", "index of another instance: error <nil>"},
		},
	},
}
