package planted

// finestoreBugs are bugs of arrays and bins, and of their readers.
var finestoreBugs = []bug{
	{
		name: "FirstBinKeepsTheGap", why: "an array whose interval gets its first bin proves as before that no key is there",
		edits: []edit{{
			file: "index/finestore/mutate.go",
			old:  "	e.Set(s.lay.BelowAt+p.slot, uint64(leaf.ToBin(bin)))\n	e.Set(leaf.GapWord, s.a.NextVersion())\n",
			new:  "	e.Set(s.lay.BelowAt+p.slot, uint64(leaf.ToBin(bin)))\n",
		}},
		caught: []test{
			{"index/finestore", "TestConformance/arrays_of_8/in-order/model", "hold although"},
			{"index/finestore", "TestReadersBetweenRounds", "its proof holds|want"},
		},
	},
	{
		name: "BinKeepsTheGap", why: "a bin that gets a row proves as before that its key is not there",
		edits: []edit{{
			file: "index/finestore/mutate.go",
			old:  "	e.Set(leaf.MetaWord, s.bins.Pack(m))\n	e.Set(leaf.GapWord, s.a.NextVersion())\n",
			new:  "	e.Set(leaf.MetaWord, s.bins.Pack(m))\n",
		}},
		caught: []test{{"index/finestore", "TestConformance/arrays_of_64/in-order/model", "hold although"}},
	},
	{
		name: "RevivedKeyKeepsTheGap", why: "an array whose deleted key comes back proves as before that it is not there",
		edits: []edit{{
			file: "index/finestore/mutate.go",
			old:  "	e.Set(s.lay.HeadsAt+p.slot, row)\n	e.Set(leaf.GapWord, s.a.NextVersion())\n",
			new:  "	e.Set(s.lay.HeadsAt+p.slot, row)\n",
		}},
		caught: []test{{"index/finestore", "TestConformance/arrays_of_8/in-order/model", "hold although"}},
	},
	{
		name: "MergedBinKeepsTheGap", why: "a bin that was merged proves as before what is not there",
		edits: []edit{{
			file: "index/finestore/merge.go",
			old:  "	w.Store(leaf.GapWord, uint64(leaf.Free)|s.a.NextVersion())\n",
			new:  "",
		}},
		caught: []test{{"index/finestore", "TestConformance/arrays_of_8/in-order/model", "hold although"}},
	},
	{
		name: "MergedArrayKeepsTheGap", why: "an array that was merged and divided proves as before what is not there",
		edits: []edit{{
			file: "index/finestore/merge.go",
			old:  "	e.Set(s.lay.BelowAt+s.lay.Slots, 0)\n",
			new:  "	e.Set(s.lay.BelowAt+s.lay.Slots, 0)\n	if was := e.Load(leaf.GapWord); was != 0 {\n		defer func() { s.span(p.addr).Store(leaf.GapWord, was) }()\n	}\n",
		}},
		caught: []test{{"index/finestore", "TestProofsEndWithMerges", "absent which is there"}},
	},
	{
		name: "LockKeepsTheVersion", why: "a lock of a row leaves the version of its array or bin, which proves a scan",
		edits: []edit{{
			file: "index/finestore/mutate.go",
			old:  "		e := s.edit(&p) // a scan's quick proof is the header of what has the row\n",
			new:  "",
		}, {
			file: "index/finestore/mutate.go",
			old:  "		row.Store(block.HeaderWord, uint64(h.Prev.Lock()))\n		s.commit(&e)\n",
			new:  "		row.Store(block.HeaderWord, uint64(h.Prev.Lock()))\n",
		}},
		caught: []test{{"index/finestore", "TestReadersBetweenRounds", "quick proofs hold"}},
	},
	{
		name: "MergeEndsSharing", why: "who shares that a key is absent does not share it in the array that is made of its bin",
		edits: []edit{{
			file: "index/finestore/merge.go",
			old:  "	if s.locks.Empty() {\n		return\n",
			new:  "	if s.locks != nil {\n		return\n",
		}},
		caught: []test{{"index/finestore", "TestSharesFollow", "another locks it"}},
	},
	{
		name: "FirstBinEndsSharing", why: "who shares that a key is absent does not share it in the first bin of the interval",
		edits: []edit{{
			file: "index/finestore/mutate.go",
			old:  "	s.locks.Copy(leaf.GapAddr(p.arr.addr), leaf.GapAddr(bin))\n",
			new:  "",
		}},
		caught: []test{{"index/finestore", "TestSharesFollow", "another locks it"}},
	},
	{
		name: "DividedBinEndsSharing", why: "who shares that a key is absent does not share it in the bin that a division has made",
		edits: []edit{{
			file: "index/finestore/merge.go",
			old:  "	s.setRoot(s.a.Begin(p.root, leaf.RootBlockWords), p, fences, kids)\n	s.locks.Copy(leaf.GapAddr(p.bin), leaf.GapAddr(right))\n",
			new:  "	s.setRoot(s.a.Begin(p.root, leaf.RootBlockWords), p, fences, kids)\n",
		}, {
			file: "index/finestore/merge.go",
			old:  "	s.commit(&e)\n	s.locks.Copy(leaf.GapAddr(p.bin), leaf.GapAddr(right))\n",
			new:  "	s.commit(&e)\n",
		}},
		caught: []test{{"index/finestore", "TestSharesFollow", "another locks it"}},
	},
	{
		name: "GivenRowsEndSharing", why: "who shares that a key is absent does not share it in the bin that takes rows of the next one",
		edits: []edit{{
			file: "index/finestore/merge.go",
			old:  "	s.locks.Copy(leaf.GapAddr(p.bin), leaf.GapAddr(left))\n",
			new:  "",
		}},
		caught: []test{{"index/finestore", "TestGivenRowsAreShared", "another locks"}},
	},
	{
		name: "MergeForgetsDeletions", why: "an absence in a merged array rests on no deletion in its bins",
		edits: []edit{{
			file: "index/finestore/merge.go",
			old:  "		deleted = max(deleted, b.Load(s.bins.DeleteAt))\n",
			new:  "",
		}},
		caught: []test{{"index/finestore", "TestConformance/arrays_of_8/in-order/model", "rests"}},
	},
	{
		name: "BinForgetsDeletions", why: "an absence in a first bin rests on no deletion before",
		edits: []edit{{
			file: "index/finestore/mutate.go",
			old:  "	e.Set(s.bins.DeleteAt, deleted)\n",
			new:  "",
		}},
		caught: []test{{"index/finestore", "TestConformance/arrays_of_8/in-order/model", "rests"}},
	},
	{
		name: "BinFencesUnchecked", why: "a lookup takes a bin that was divided or merged since for that of its key",
		edits: []edit{{
			file: "index/learned/read/binget.go",
			old:  "see == seeHere && sideOf(&v, o.key.Num) == seeHere {",
			new:  "see == seeHere {",
		}},
		caught: []test{{"index/finestore", "TestReadersBetweenSteps", "its proof holds"}},
	},
	{
		name: "IntervalUnchecked", why: "a scan takes a bin that was divided since for all of an interval",
		edits: []edit{{
			file: "index/learned/read/binscan.go",
			old:  "see == seeHere && !b.is(&b.view) {",
			new:  "see != see {",
		}, {
			file: "index/learned/read/binscan.go",
			old:  "see == seeHere && !b.root.Is(b.low, b.high, b.last) {",
			new:  "see != see {",
		}},
		caught: []test{{"index/finestore", "TestReadersBetweenSteps", "want"}},
	},
	{
		name: "BinsWithoutRowsStay", why: "an array with many bins that have no rows is not due",
		edits: []edit{{
			file: "index/finestore/merge.go",
			old:  "return a.binned + emptyBinRows*a.empty }",
			new:  "return a.binned }",
		}},
		caught: []test{{"index/finestore", "TestBinsWithoutRowsAreMerged", "bins for each array at most"}},
	},
	{
		name: "TidyEndsEarly", why: "arrays that are due wait for others that cannot be joined",
		edits: []edit{{
			file: "index/finestore/merge.go",
			old:  "	return worked || len(s.due) > 0\n",
			new:  "	return worked\n",
		}},
		caught: []test{{"index/finestore", "TestTidyGoesOn", "arrays are due, of"}},
	},
	{
		name: "RangeBeginsBelowItsKey", why: "a scan proves the interval before the key at which its range begins",
		edits: []edit{{
			file: "index/finestore/read.go",
			old:  "		if last || high > c.lo {",
			new:  "		if last || high >= c.lo {",
		}, {
			file: "index/learned/read/binscan.go",
			old:  "		if i == l.first && found {\n",
			new:  "		if i < l.first && found {\n",
		}},
		caught: []test{{"index/finestore", "TestExactCosts", "proofs of gaps"}},
	},
	{
		name: "SpanForgetsItsVerdict", why: "a lookup waits for nothing after it has found an array whose keys do not ascend in a span",
		edits: []edit{{
			file: "index/learned/read/span.go",
			old:  "			if see == seeHere {\n				return finished\n",
			new:  "			if see >= seeHere {\n				return finished\n",
		}},
		caught: []test{{"index/finestore", "TestHostileSpans", "index out of range|a round of 0"}},
	},
	{
		name: "BadIntervalsFoundLate", why: "a scan READs bins of an array that it then refuses",
		edits: []edit{{
			file: "index/learned/read/binscan.go",
			old:  "		if b := v.Below(i); b != 0 && !b.Valid() {\n",
			new:  "		if b := v.Below(i); b != b {\n",
		}},
		caught: []test{{"index/finestore", "TestHostileIntervals", "the first bin is READ: true"}},
	},
}
