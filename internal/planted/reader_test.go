package planted

// readerBugs are bugs of the client half of the ordered index.
var readerBugs = []bug{
	{
		name: "ScansForgetFill", why: "a scan does not learn how full the leaves are",
		edits: []edit{{
			file: "index/learned/read/scan.go",
			old:  "	o.learnFill(l)\n",
			new:  "",
		}},
		caught: []test{{"index/learned/read", "TestScansLearnHowFullLeavesAre", "leaves READ in vain"}},
	},
	{
		name: "OrderIsBelieved", why: "a scan takes the slots of a leaf in the order that the leaf has for them, unseen",
		edits: []edit{{
			file: "index/learned/read/scan.go",
			old:  "		return l.view.Order()\n",
			new:  "		order, _ = l.view.Order()\n		return order, true\n",
		}},
		caught: []test{{"index/learned/read", "TestWrongOrderIsNotBelieved", "slot twice|falls|panic"}},
	},
	{
		name: "OrderMayLeaveOut", why: "a scan does not notice that the order of a leaf leaves slots out",
		edits: []edit{{
			file: "index/learned/leaf/leaf.go",
			old:  "	if live != 0 {\n",
			new:  "	if live > 0 {\n",
		}},
		caught: []test{
			{"index/learned/leaf", "TestOrderIsChecked", "slots in use"},
			{"index/learned/read", "TestWrongOrderIsNotBelieved", "row less"},
		},
	},
	{
		name: "LookupsWaitAtLocks", why: "a lookup READs a locked row again although its attempt bounds the locks that it meets",
		edits: []edit{{
			file: "index/index.go",
			old:  "	return a.Locks\n",
			new:  "	return max(a.Locks, bound)\n",
		}},
		caught: []test{{"index/hash", "TestConformance", "rounds to lock 1"}, {"index/learned", "TestConformance", "rounds to lock 1"}},
	},
	{
		name: "LocksForgetPlaces", why: "a lookup that ends at a lock forgets where the row is",
		edits: []edit{{
			file: "index/hash/get.go",
			old:  "		if o.endsAtLock() {\n			return o.finish(index.Locked)\n		}\n		if o.phase == phaseCached {\n",
			new:  "		if o.endsAtLock() {\n			o.cache.drop(o.hash, o.addr)\n			return o.finish(index.Locked)\n		}\n		if o.phase == phaseCached {\n",
		}},
		caught: []test{{"index/hash", "TestConformance", "after its lock"}},
	},
	{
		name: "FarBehindWaits", why: "the sub-model whose splits readers lack most is trained after all that became dirty before it",
		edits: []edit{{
			file: "index/learned/train/trainer.go",
			old:  "	if u == lazily {\n		i = g.takeBehind(",
			new:  "	if false {\n		i = g.takeBehind(",
		}},
		caught: []test{{"index/learned", "TestFarBehindIsTrainedFirst", "lacking after the first"}},
	},
	{
		name: "SealedModelsRest", why: "when loading ends, sub-models that were trained just before are not trained again",
		edits: []edit{{
			file: "index/learned/train/trainer.go",
			old:  "		case u == atOnce:\n",
			new:  "		case u == atOnce && false:\n",
		}},
		caught: []test{{"index/learned", "TestAllAreTrainedAtOnce", "are still to be trained"}},
	},
	{
		name: "HollowSubModelsStay", why: "sub-models in which no leaf begins any more stay for ever",
		edits: []edit{{
			file: "index/learned/train/plan.go",
			old:  "		if i > 0 && g.subs[i].hollow {\n",
			new:  "		if i < 0 && g.subs[i].hollow {\n",
		}},
		caught: []test{{"index/learned", "TestModelsOfAQueue", "sub-models after"}},
	},
	{
		name: "RestingSubModelsComeFirst", why: "the trainer examines the same sub-models again, none of which is due",
		edits: []edit{{
			file: "index/learned/train/trainer.go",
			old:  "			g.dirty = append(g.dirty[:copy(g.dirty, g.dirty[k:])], waiting[:]...)\n",
			new:  "			_, g.dirty = waiting, append(g.dirty[:kept], g.dirty[k:]...)\n",
		}},
		caught: []test{{"index/learned", "TestLazyTrainingWaitsForChanges", "want the one with ten"}},
	},
	{
		name: "FewChangesAreTrained", why: "a sub-model is trained at once for one new leaf",
		edits: []edit{{
			file: "index/learned/train/trainer.go",
			old:  "	return st.lacks() < fewChanges\n",
			new:  "	return st.lacks() < fewChanges && false\n",
		}},
		caught: []test{{"index/learned", "TestLazyTrainingWaitsForChanges", "with one new leaf were trained at once"}},
	},
	{
		name: "ScanWithoutNextLeaf", why: "the leaf after the last row of a scan is not part of its proofs",
		edits: []edit{{
			file: "index/learned/read/scan.go",
			old:  "	o.res.Gaps = append(o.res.Gaps, o.gapProof(&l.view, l.addr))\n",
			new: `	o.res.Gaps = append(o.res.Gaps, o.gapProof(&l.view, l.addr))
	if before > 0 && len(o.res.Entries) == before {
		o.res.Quick, o.res.Gaps = o.res.Quick[:len(o.res.Quick)-1], o.res.Gaps[:len(o.res.Gaps)-1]
	}
`,
		}},
		caught: []test{{"index/learned/read", "TestScanProvesTheNextLeaf", "the quick proofs of a scan"}},
	},
	{
		name: "SplitsBehindTheModel", why: "a reverse scan begins where the models end, whatever the client knows of splits since",
		edits: []edit{{
			file: "index/learned/read/before.go",
			old:  "	if p == nil {\n		return from - n, low, false\n",
			new:  "	if p == nil || n >= 0 {\n		return from - n, low, false\n",
		}},
		caught: []test{{"index/learned/read", "TestBeforeKnowsOfSplits", "rows before row"}, {"txn", "TestNewestRowsInReverse", "READs while 100 rows"}},
	},
	{
		name: "ScansLearnNothing", why: "a scan forgets the leaves that only right links led it to",
		edits: []edit{{
			file: "index/learned/read/scan.go",
			old:  "		if l.linked || l.guess {\n",
			new:  "		if (l.linked || l.guess) && o.consumed < 0 {\n",
		}},
		caught: []test{{"index/learned/read", "TestBeforeKnowsOfSplits", "rows before row"}},
	},
	{
		name: "OnlyTailListsAreReadAhead", why: "a scan follows right links to the leaves that an earlier scan has found by them",
		edits: []edit{{
			file: "index/learned/read/tail.go",
			old:  "	if held == nil {\n		return 0, false\n	}\n	p, c := held.patch.Load(), &o.cursor\n",
			new:  "	if held == nil || held.tail == nil {\n		return 0, false\n	}\n	p, c := held.patch.Load(), &o.cursor\n",
		}},
		caught: []test{{"index/learned/read", "TestScansReadAheadWhatScansFound", "rounds of three scans"}},
	},
	{
		name: "HiddenLeavesAreReadAhead", why: "a scan READs ahead leaves that a newer one has replaced",
		edits: []edit{{
			file: "index/learned/read/tail.go",
			old:  "		for c.at.before < len(before) && lately[c.at.late-1].reaches(before[c.at.before].low) {\n",
			new:  "		for c.at.before < len(before) && before[c.at.before].low == lately[c.at.late-1].low {\n",
		}},
		caught: []test{{"index/learned/read", "TestPatch", "come"}},
	},
	{
		name: "BriefsEndTooEarly", why: "the last string keys of a leaf, which have the digest of its high fence, are sought by a prediction",
		edits: []edit{{
			file: "index/learned/read/patch.go",
			old:  "			if l.high.Str == \"\" && d > 0 {\n",
			new:  "			if d > 0 {\n",
		}},
		caught: []test{{"index/learned/read", "TestListOfHotSubModel", "ends before"}},
	},
	{
		name: "BriefsOfTheOldPrefix", why: "a list of string keys compares digests behind two prefixes once a leaf without the common one joins it",
		edits: []edit{{
			file: "index/learned/read/tail.go",
			old:  "			all.digestAll()\n",
			new:  "",
		}},
		caught: []test{{"index/learned/read", "TestListOfHotSubModel", "leads to"}},
	},
	{
		name: "GuessedOnce", why: "a reverse scan that meets leaves without a model reads on through all that it knows by now",
		edits: []edit{{
			file: "internal/exec/pages.go",
			old:  "					if guess := p.before(rows); guess.Compare(next) > 0 {\n",
			new:  "					if guess := p.before(rows); guess.Compare(next) > 0 && len(starts) == 0 {\n",
		}},
		caught: []test{{"txn", "TestNewestRowsInReverse", "READs after 2000 rows"}},
	},
	{
		name: "ModelsLeftOut", why: "a sub-model that was trained again while the client loaded it is fetched anew by each operation, for good",
		edits: []edit{{
			file: "index/learned/read/fetch.go",
			old:  "		f.c.again(h, missing)\n",
			new:  "		f.c.again(h, missing[:0])\n",
		}},
		caught: []test{{"index/learned/read", "TestModelsChangeWhileTheyAreRead", "is held: false"}},
	},
	{
		name: "StaleForGood", why: "a sub-model that a client was about to look at when its connection failed is never looked at again",
		edits: []edit{{
			file: "index/learned/read/refresh.go",
			old:  "		f.c.again(h, stale)\n",
			new:  "		f.c.again(h, stale[:0])\n",
		}},
		caught: []test{{"index/learned/read", "TestModelsChangeWhileTheyAreRead", "stale for good: true"}},
	},
	{
		name: "FirstTie", why: "the first row with a string key's digest and tag is taken for the row of the key",
		edits: []edit{{
			file: "index/learned/read/stringget.go",
			old:  "	if see == rowHere && key != g.o.key.Str {\n",
			new:  "	if see == rowHere && len(key) == 0 {\n",
		}},
		caught: []test{{"index/learned/read", "TestTiedDigests", "want not found|want NotFound|row of"}},
	},
	{
		name: "AbsentBehindFences", why: "a string key is absent if the leaf has no row of it, whatever the fences of the leaf",
		edits: []edit{{
			file: "index/learned/read/stringget.go",
			old:  "	if g.covered {\n",
			new:  "	if len(g.o.key.Str) >= 0 {\n",
		}},
		caught: []test{{"index/learned/read", "TestAbsenceBehindFences", "key .x+[0-9]+"}},
	},
	{
		name: "AnyFences", why: "a fence block of any leaf and version is accepted",
		edits: []edit{{
			file: "index/learned/leaf/leaf.go",
			old:  "buf[OwnerWord] != leaf {\n		return Fences{}, false\n",
			new:  "buf[OwnerWord] != leaf {\n		return s.split(mem.WordString(buf[FencesAtWord:], s.Bytes()), v.Last()), true\n",
		}},
		caught: []test{{"index/learned/read", "TestFencesOfAnotherLeaf", "is there and said to be absent"}},
	},
	{
		name: "BoundsIgnored", why: "a lookup whose key is left of the predicted leaf looks at the leaf before it, not at all that the model bounds",
		edits: []edit{{
			file: "index/learned/read/span.go",
			old:  "	if s.lo > s.hi || s.rounds >= spansMax {\n		return false, false\n",
			new:  "	if s.hi < 1<<30 {\n		return false, false\n",
		}},
		caught: []test{{"index/learned/read", "TestNoFallbacksAtRest", "fallback"}},
	},
	{
		name: "TailListIsBelieved", why: "a leaf that a tail list names is taken for the key's, whatever its fences",
		edits: []edit{{
			file: "index/learned/read/nativeget.go",
			old:  "	if see := sideOf(&g.o.view, g.o.key.Num); see != seeHere {\n",
			new:  "	if see := sideOf(&g.o.view, g.o.key.Num); see != seeHere && g.o.jumped != g.o.addr {\n",
		}},
		caught: []test{{"index/learned/read", "TestTailListIsAHint/inline", "and said to be"}},
	},
	{
		name: "TornTailEntry", why: "an entry of a tail list is taken without its check",
		edits: []edit{{
			file: "index/learned/model/tail.go",
			old:  "prefix, &e) || b[n-1] != tailCheck(r.TailSlot(list, number), found, b[:n-1], &e) {\n",
			new:  "prefix, &e) {\n",
		}},
		caught: []test{{"index/learned/model", "TestTailEntries", "taken as"}},
	},
	{
		name: "OldInnerNodeIsKept", why: "a client that READs an inner node again beside a leaf keeps the old one",
		edits: []edit{{
			file: "index/learned/read/inner.go",
			old:  "		f.keepNode(w.depth, at.buf)\n	case nodeOther:\n",
			new:  "	case nodeOther:\n",
		}},
		caught: []test{{"index/learned/read", "TestInnerNodesFollowTheTree", "when all nodes were READ again"}},
	},
	{
		name: "ForeignInnerNodeIsBelieved", why: "a client takes an inner node that does not cover the key",
		edits: []edit{{
			file: "index/learned/read/inner.go",
			old:  "got.Level != f.way.path[depth-1].Level-1 || !got.Covers(f.key.Num) {\n",
			new:  "got.Level != f.way.path[depth-1].Level-1 {\n",
		}},
		caught: []test{{"index/learned/read", "TestInnerNodesFollowTheTree", "when all nodes were READ again|fallback"}},
	},
	{
		name: "InnerNodesGrow", why: "the bound of the inner nodes that a client holds is ignored",
		edits: []edit{{
			file: "index/learned/read/nodes.go",
			old:  "	if c.bound > 0 && !c.room(nd) {\n",
			new:  "	if c.bound > 0 && c.bound < len(c.all) && !c.room(nd) {\n",
		}},
		caught: []test{{"index/learned/read", "TestTreeCacheIsBounded", "bytes held, want at most"}},
	},
	{
		name: "UnpackedGuessIsBelieved", why: "a client with decoded translation tables takes one of the leaves around its guess, whether the key's leaf is among them or not",
		edits: []edit{{
			file: "index/learned/model/unpacked.go",
			old:  "		if unpackedCell(w[0]) <= low && unpackedCell(w[3]) > high {\n",
			new:  "		if unpackedCell(w[0]) <= low || unpackedCell(w[3]) > high {\n",
		}},
		caught: []test{{"index/learned/model", "TestBoundsAndMonotony", "with an unpacked TT"}},
	},
	{
		name: "UnpackedWithoutExceptions", why: "unpacking a translation table forgets the leaves in distant places",
		edits: []edit{{
			file: "index/learned/model/unpacked.go",
			old:  "	v, n := s.view(), s.Leaves()\n",
			new:  "	v, n := s.view(), s.Leaves()\n	if s.extentShift() == 0 {\n		s.body[1] &^= 1<<listBits - 1\n	}\n",
		}},
		caught: []test{{"index/learned/model", "TestBoundsAndMonotony", "with an unpacked TT"}},
	},
	{
		name: "PlaceWithoutKey", why: "a lookup takes what lies where a twin says that its row is, whatever key that has",
		edits:  []edit{{file: "index/hash/get.go", old: "	if o.row[keyWord] != o.key || block", new: "	if block"}},
		caught: []test{{"index/hash", "TestPlaces", "with the place"}},
	},
	{
		name: "RoundsOfManyAreNotCounted", why: "rounds to several data servers are not counted",
		edits: []edit{{
			file: "internal/exec/round.go",
			old:  "		r.net.stats.Rounds++\n	}\n	for _, l",
			new:  "	}\n	for _, l",
		}},
		caught: []test{{"txn", "TestRoundsOfTwins/next", "2 rounds, want 3"}},
	},
	{
		name: "AgentTimeIsHidden", why: "the time of the agents that perform verbs is not counted",
		edits:  []edit{{file: "rdma/internal/provide/agent.go", old: "{ c.spent.Add(int64(time.Since(since))) }", new: "{}"}},
		caught: []test{{"rdma/tcp", "TestConformance", "no time was counted"}},
	},
	{
		name: "NICOfEachConnection", why: "each connection to a modelled machine has all of its network",
		edits:  []edit{{file: "rdma/inproc/node.go", old: "n.nic = max(n.nic, at) + ", new: "n.nic = at + "}},
		caught: []test{{"rdma/inproc", "TestNodeQueues", "another, at the same time"}},
	},
	{
		name: "ValidationIsNotCounted", why: "the rounds in which a View validates count as rounds of its reads",
		edits: []edit{{
			file: "internal/exec/validate.go",
			old:  "	v.net.stats.Proving += v.net.stats.Rounds - before\n",
			new:  "	_ = before\n",
		}},
		caught: []test{{"cmd/go-ycsb", "TestComparedCostsAreExact", "Proving:0"}},
	},
	{
		name: "ComparedStoresGrow", why: "the runs of a comparison begin with the records that earlier ones inserted",
		edits: []edit{{
			file: "cmd/go-ycsb/engines.go",
			old:  "	if plan.Inserts() { // the next run begins with the same records\n",
			new:  "	if plan.Inserts() && f.repeat == 0 {\n",
		}},
		caught: []test{{"cmd/go-ycsb", "TestComparedRunsBeginEqual", "failed"}},
	},
}
