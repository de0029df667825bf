package planted

// pastBugs are bugs of what the hash index leaves behind for readers of the
// past, and of these readers.
var pastBugs = []bug{
	{
		name: "PastCopyLate", why: "the copy of a row is made after the row has changed",
		edits: []edit{{
			file: "index/hash/lock.go",
			old:  "	lo, hi := 0, len(row)\n	if s.history.Keeps() {\n		lo, hi = s.leave(&e, held, ",
			new:  "	lo, hi := 0, len(row)\n	e.Write(rowWord, row)\n	if s.history.Keeps() {\n		lo, hi = s.leave(&e, held, ",
		}},
		caught: []test{{"index/hash", "TestPast/no_location_cache/in-order", "is torn or another key's|over the row of version"}},
	},
	{
		name: "PastCopyOfNothing", why: "an old version is copied for a row that was absent",
		edits: []edit{
			{
				file: "index/hash/version.go",
				old:  "	if held.Prev.CSN() == 0 {\n		return c.Lo, c.Hi // the key had no row before\n	}\n",
				new:  "",
			},
			{
				file: "index/hash/version.go",
				old:  "	return !h.IsAbsent() || h.CSN().Tick() > s.history.Floor()\n",
				new:  "	return true\n",
			},
		},
		caught: []test{{"index/hash", "TestPast/no_location_cache/in-order", "gone; present: false|the version below is"}},
	},
	{
		name: "PastPresentTick", why: "whether a row is of this tick is taken from the clock, not from the row",
		edits: []edit{{
			file: "index/hash/version.go",
			old:  "	overwrites := held.Prev.CSN().Tick() < h.CSN().Tick()\n",
			new:  "	overwrites := s.arena.LastCSN().Tick() < h.CSN().Tick()\n",
		}},
		caught: []test{{"index/hash", "TestPast/no_location_cache/in-order", "present: true|present: false|want version"}},
	},
	{
		name: "PastUnlocked", why: "old versions are unlocked, like rows, and so may prove something",
		edits: []edit{
			{
				file: "internal/block/edit.go",
				old:  "		to.Put(ChecksumWord, e.sum+frame(addr, uint64(h.Unlock())))\n	}\n	to.Put(HeaderWord, uint64(h.Lock()))\n",
				new:  "		to.Put(ChecksumWord, e.sum+frame(addr, uint64(h.Unlock())))\n	}\n	to.Put(HeaderWord, uint64(h.Unlock()))\n",
			},
			{
				file: "index/hash/version.go",
				old:  "		s.history.RetainRow(older, h.CSN().Tick())\n",
				new:  "		s.unlockRow(held)\n		s.history.RetainRow(older, h.CSN().Tick())\n",
			},
		},
		caught: []test{
			{"index/hash", "TestPast/no_location_cache/in-order", "gone; present"},
			{"index/hash", "TestConformanceWithPast/strings/in-order/model", "hold although|get says found; present: false"},
		},
	},
	{
		name: "PastNoTombstone", why: "a deletion leaves no tombstone",
		edits: []edit{{
			file: "index/hash/version.go",
			old:  "	if !s.history.Keeps() || !held.Existed || sameTick &&",
			new:  "	if held != nil || sameTick &&",
		}},
		caught: []test{{"index/hash", "TestPast/no_location_cache/in-order", "not found; present: true"}},
	},
	{
		name: "PastLostInMove", why: "a row that moves within a tick loses its older versions",
		edits: []edit{{
			file: "index/hash/version.go",
			old:  "			return older, false\n",
			new:  "			return 0, false\n",
		}},
		caught: []test{{"index/hash", "TestPast/strings/in-order", "not found; present: true"}},
	},
	{
		name: "PastOneVersionATick", why: "a second write of a tick leaves no version, although it changes other words than the patch has that the first has left",
		edits: []edit{{
			file: "internal/block/keep.go",
			old:  "	whole = older.IsPatch() && (",
			new:  "	whole = older == 0 && older.IsPatch() && (",
		}},
		caught: []test{
			{"index/learned/tree", "TestPatchesOfOneTick/inline", "want"},
			{"index/learned/tree", "TestPatchesOfOneTick/apart", "want"},
			{"index/learned", "TestPastOfClients/in-order/apart/readers=0/0", "is torn or another key's"},
			{"index/hash", "TestPast/no_location_cache/in-order", "is torn or another key's"},
			{"index/hash", "TestPast/strings/in-order", "is torn or another key's|gone; present|is no patch"},
		},
	},
	{
		name: "PastPatchOfMoved", why: "a row that moves within a tick takes along the link to a patch of the row that it was",
		edits: []edit{{
			file: "index/hash/version.go",
			old:  "s.versions.OlderWord)); !older.IsPatch() {",
			new:  "s.versions.OlderWord)); held != nil {",
		}},
		caught: []test{{"index/hash", "TestPast/strings/in-order", "is torn or another key's|gone; present|is no patch"}},
	},
	{
		name: "PastPatchOfResized", why: "a row that changes its length leaves a patch, to which its length belongs",
		edits: []edit{{
			file: "index/hash/strlock.go",
			old:  "resized := lengthsOf(e.Load(lengthWord)).row != len(row)",
			new:  "resized := false",
		}},
		caught: []test{{"index/hash", "TestPast/strings/in-order", "is torn or another key's|gone; present|is no patch|has [0-9]+"}},
	},
	{
		name: "PastNotAnnounced", why: "the header of a locked row does not tell that its body changes",
		edits: []edit{{
			file: "internal/block/edit.go",
			old:  "{ e.s.Put(HeaderWord, uint64(h.Lock())) }",
			new:  "{ _ = h }",
		}},
		caught: []test{{"internal/block", "TestVersionsExhaustively", "in order: of [0-9]+ answers, wrong is one"}},
	},
	{
		name: "PastKeepGapWord", why: "an insert over a tombstone leaves the version that proves an absence",
		edits: []edit{{
			file: "index/hash/version.go",
			old:  "	s.open(head)\n	s.commit()\n	return held, nil\n",
			new:  "	return held, nil\n",
		}},
		caught: []test{{"index/hash", "TestConformanceWithPast/numbers/in-order/model", "hold although|that do not hold"}},
	},
	{
		name: "PastCachedVersion", why: "a reader of the past takes what its cache leads to for the row, although it is locked",
		edits: []edit{{
			file: "index/hash/getat.go",
			old:  "	case o.phase == phaseCachedAt && h.Locked():\n",
			new:  "	case o.phase == phaseCachedAt && h.Locked() && h.IsAbsent():\n",
		}},
		caught: []test{{"index/hash", "TestPast/strings,_location_cache/in-order", "want version|present: false|present: true"}},
	},
	{
		name: "PastRowOfTomb", why: "a tombstone is a row to readers of the present",
		edits: []edit{{
			file: "index/hash/get.go",
			old:  "		if o.newer(h) {\n			return o.again(next)\n		}\n		return o.searchBucket(next)\n",
			new:  "		return o.found()\n",
		}},
		caught: []test{{"index/hash", "TestConformanceWithPast/numbers/in-order/model", "get says found; present: false|with header"}},
	},
}
