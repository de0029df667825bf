package planted

// readerPastBugs are bugs of the client half of the ordered index, where it
// answers about the past.
var readerPastBugs = []bug{
	{
		name: "ReaderPastOneTooFar", why: "a reader of the past goes past the version of its own tick",
		edits:  []edit{{file: "index/learned/read/past.go", old: "	case h.CSN().Tick() > at:\n", new: "	case h.CSN().Tick() >= at:\n"}},
		caught: []test{{"index/learned", "TestPastOfClients/in-order/inline/readers=0/0", "present: true|want version|header"}},
	},
	{
		name: "ReaderPastOneTooShort", why: "a reader of the past stops at the version after its tick",
		edits:  []edit{{file: "index/learned/read/past.go", old: "	case h.CSN().Tick() > at:\n", new: "	case h.CSN().Tick() > at+1:\n"}},
		caught: []test{{"index/learned", "TestPastOfClients/in-order/inline/readers=0/0", "present: false|want version|header"}},
	},
	{
		name: "ReaderPastNoGraves", why: "a reader of the past takes a key that was deleted since for one that was absent",
		edits:  []edit{{file: "index/learned/read/past.go", old: "	if v.LastDelete().Tick() <= at {\n", new: "	if v.LastDelete() != 0 {\n"}},
		caught: []test{{"index/learned", "TestPastOfClients/in-order/inline/readers=0/0", "present: true"}},
	},
	{
		name: "ReaderPastLastGrave", why: "a lookup of the past takes the life of a key that ended last, not the one that ended first after its tick, and no other",
		edits: []edit{{
			file: "index/learned/read/past.go",
			old:  "		if p.dead[i].Deleted < p.dead[first].Deleted {\n",
			new:  "		if p.dead[i].Deleted > p.dead[first].Deleted {\n",
		}, {
			file: "index/learned/read/past.go",
			old:  "	p.dead[first], p.dead = p.dead[last], p.dead[:last]\n",
			new:  "	p.dead = p.dead[:last*0]\n",
		}},
		caught: []test{{"index/learned", "TestPastOfClients/in-order/inline/readers=0/0", "present: true"}},
	},
	{
		name: "ReaderPastTornRow", why: "a reader of the past takes the body of a row while it changes",
		edits: []edit{{
			file: "index/learned/read/past.go",
			old:  "	case block.AcceptVersion(wr.Buf, wr.Tail, wr.Addr, inOrder) != block.OK:\n		return rowTorn\n	}\n	return rowPast\n",
			new:  "	}\n	return rowPast\n",
		}},
		caught: []test{{"index/learned/read", "TestTornRowOfThePast", "torn or not"}},
	},
	{
		name: "ReaderPastTwice", why: "a scan of the past returns a row twice that was deleted between its two READs",
		edits: []edit{{
			file: "index/learned/read/pastscan.go",
			old:  "e.Addr != deadEntry && (n == o.past.settled || e.Key != o.res.Entries[n-1].Key)",
			new:  "e.Addr != deadEntry",
		}},
		caught: []test{{"index/learned", "TestPastOfClients/in-order/apart/readers=2", "returned: false|foreign, out of range or out of order"}},
	},
	{
		name: "ReaderPastFloorNotRead", why: "an answer about the past counts although the floor has risen past its tick",
		edits:  []edit{{file: "index/indextest/past.go", old: "		case floor > at:\n", new: "		case floor > at && false:\n"}},
		caught: []test{{"index/learned", "TestPastOfClients/in-order/inline/readers=0/0", "gone|present|header"}},
	},
	{
		name: "TreeLateBlockFreed", why: "the block of a row that is deleted in the tick of its last write is freed at once",
		edits: []edit{{
			file: "index/learned/tree/mutate.go",
			old:  "kept && at != 0 {",
			new:  "kept && at != 0 && t.overwrites(h, block.Absent(deleted)) {",
		}},
		caught: []test{{"index/learned/read", "TestLateReadOfARow", "not found"}},
	},
}
