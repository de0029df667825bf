package planted

// treePastBugs are bugs of what the tree of the ordered index keeps for readers
// of the past.
var treePastBugs = []bug{
	{
		name: "TreeGravesOfUnlinked", why: "the graves of a leaf go with it when it is unlinked",
		edits: []edit{{
			file: "index/learned/tree/merge.go",
			old:  "	t.divide(t.gather(old, f), left)\n",
			new:  "	t.gather(f)\n	t.divide(t.gather(old), left)\n",
		}},
		caught: []test{{"index/learned/tree", "TestPastGoesWithRows/apart", "after merges|cannot be read"}},
	},
	{
		name: "TreeGravesOfMerged", why: "the graves of leaves go with them when they are merged",
		edits: []edit{{
			file: "index/learned/tree/merge.go",
			old:  "	t.divide(t.gather(run...), to...)\n",
			new:  "	t.divide(t.gather(run...))\n",
		}},
		caught: []test{{"index/learned/tree", "TestPastGoesWithRows/strings", "after merges|cannot be read"}},
	},
	{
		name: "TreeGravesOfSplit", why: "a split leaves all graves in the left leaf",
		edits: []edit{{
			file: "index/learned/tree/split.go",
			old:  "	t.divide(t.gather(old), left, right)\n",
			new:  "	t.divide(t.gather(old), left)\n",
		}},
		caught: []test{{"index/learned/tree", "TestPastGoesWithRows/inline", "after second lives"}},
	},
	{
		name: "TreeOlderStays", why: "splits and merges leave the word older of an inline row behind",
		edits: []edit{{
			file: "index/learned/tree/rows.go",
			old:  "	e.Set(r.t.lay.OldersAt+to, s.Load(r.t.lay.OldersAt+from))\n",
			new:  "	e.Set(r.t.lay.OldersAt+to, 0)\n",
		}},
		caught: []test{{"index/learned/tree", "TestPastGoesWithRows/inline", "after splits"}},
	},
	{
		name: "TreeOlderLostInMove", why: "a row that moves within a tick loses its older version",
		edits: []edit{{
			file: "index/learned/tree/rows.go",
			old:  "	older := t.olderOf(old.Addr())\n	if older.IsPatch() || t.overwrites(h, head) {",
			new:  "	older := block.Older(0)\n	if older.IsPatch() || t.overwrites(h, head) {",
		}},
		caught: []test{{"index/learned/tree", "TestPastOfOneTick/strings", "not found"}},
	},
	{
		name: "TreePatchInGrave", why: "a grave leads to a patch of the row that was deleted",
		edits: []edit{{
			file: "index/learned/tree/rows.go",
			old:  "	if older.IsPatch() || r.t.overwrites(h, head) {\n		return r.version(h, block.Change{}, true, head.CSN().Tick())\n",
			new:  "	if r.t.overwrites(h, head) {\n		return r.version(h, block.Change{}, true, head.CSN().Tick())\n",
		}},
		caught: []test{{"index/learned/tree", "TestPatchesOfOneTick/inline", "gone|no patch|want"}},
	},
	{
		name: "TreePatchOfMoved", why: "a row that moves within a tick takes along the link to a patch of the row that it was",
		edits: []edit{{
			file: "index/learned/tree/rows.go",
			old:  "	if older.IsPatch() || t.overwrites(h, head) { // a patch",
			new:  "	if t.overwrites(h, head) { // a patch",
		}},
		caught: []test{{"index/learned/tree", "TestPatchesOfOneTick/strings", "gone|no patch|want"}},
	},
	{
		name: "TreeCopyAfterChange", why: "the version of a row is copied when the row has changed",
		edits: []edit{{
			file: "index/learned/tree/rows.go",
			old:  "	r.t.keepVersion(&e, h, leaf.RowWord, c, head)\n	e.Write(leaf.RowWord+c.Lo, row[c.Lo:c.Hi])\n",
			new:  "	e.Write(leaf.RowWord+c.Lo, row[c.Lo:c.Hi])\n	r.t.keepVersion(&e, h, leaf.RowWord, c, head)\n",
		}},
		caught: []test{{"index/learned/tree", "TestPastAtEveryStep/apart", "want"}},
	},
	{
		name: "TreeOlderAfterRow", why: "a row leads to its version when it has changed already",
		edits: []edit{{
			file: "index/learned/tree/versions.go",
			old:  "	e.Set(olderAt, uint64(o))\n	e.Announce(head)\n	t.step(\"announced\")\n",
			new:  "	e.Announce(head)\n	t.step(\"announced\")\n	e.Set(olderAt, uint64(o))\n",
		}},
		caught: []test{{"index/learned/tree", "TestPastAtEveryStep/apart", "\"announced\".*not found"}},
	},
	{
		name: "TreeGraveAfterDeletion", why: "a deletion is dug a grave when the row has gone",
		edits: []edit{{
			file: "index/learned/tree/mutate.go",
			old:  "		t.dig(h, head.CSN(), t.rows.last(h, head))\n	}\n	t.vacate(h, head.CSN(), kept)\n",
			new:  "		older := t.rows.last(h, head)\n		t.vacate(h, head.CSN(), kept)\n		t.dig(h, head.CSN(), older)\n	}\n",
		}},
		caught: []test{{"index/learned/tree", "TestPastAtEveryStep/inline", "not found"}},
	},
	{
		name: "TreeCopyOfAbsent", why: "the placeholder of an insert leaves a version",
		edits: []edit{{
			file: "index/learned/tree/versions.go",
			old:  "	return h.Existed && t.a.History()",
			new:  "	return t.a.History()",
		}},
		caught: []test{
			{"index/learned/tree", "TestPastBeforeInsert/inline", "want"},
			{"index/learned/tree", "TestPastBeforeInsert/strings", "want"},
		},
	},
	{
		name: "TreeTickOfPresent", why: "a commit at an earlier tick than the present one leaves no version",
		edits: []edit{{
			file: "index/learned/tree/versions.go",
			old:  "head.CSN().Tick() > h.Prev.CSN().Tick()\n",
			new:  "head.CSN().Tick() == t.a.LastCSN().Tick() && head.CSN().Tick() > h.Prev.CSN().Tick()\n",
		}},
		caught: []test{{"index/learned/tree", "TestPastOfOneTick/apart", "want"}},
	},
	{
		name: "TreeVersionUnlocked", why: "the version of an inline row is published unlocked",
		edits: []edit{{
			file: "index/learned/tree/rows.go",
			old:  "	e.Commit(h.Prev.Lock())\n",
			new:  "	e.Commit(h.Prev)\n",
		}},
		caught: []test{{"index/learned/tree", "TestPastAtEveryStep/inline", "gone|version"}},
	},
	{
		name: "TreeOpenGravesForgotten", why: "a block of graves does not last as long as the leaf leads readers to it",
		edits: []edit{{
			file: "index/learned/tree/graves.go",
			old:  "			g.open.newest = max(g.open.newest, needed)\n",
			new:  "",
		}},
		caught: []test{{"index/learned/tree", "TestGravesLastAsLongAsRead", "gone"}},
	},
}
