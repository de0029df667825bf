package planted

// blockBugs are bugs of the rules that accept a block read from remote memory.
var blockBugs = []bug{
	{
		name: "IgnoreTail", why: "a READ that arrives in order does not load the header again after the body",
		edits: []edit{{
			file: "internal/block/accept.go",
			old:  "		if tail != h {\n",
			new:  "		if tail != h && false {\n",
		}},
		caught: []test{
			{"internal/block", "TestAcceptInOrderExhaustively", "torn and accepted"},
			{"index/hash", "TestCrowdedChains", "the row is torn or another key|over the row of version|rests at version [0-9]+; get says"},
		},
	},
	{
		name: "IgnoreChecksum", why: "a block read in any order is accepted whatever its checksum",
		edits: []edit{{
			file: "internal/block/accept.go",
			old:  "	if buf[ChecksumWord] != Checksum(addr, buf) {\n",
			new:  "	if buf[ChecksumWord] != Checksum(addr, buf) && false {\n",
		}},
		caught: []test{
			{"internal/block", "TestAcceptChecksumExhaustively", "torn and accepted|is accepted at"},
			{"server", "TestHistories/words in any order", anomaly + "|row of key [0-9]+ says"},
		},
	},
}

// reuseBugs are bugs of the rule by which memory of rows changes its use.
var reuseBugs = []bug{
	{
		name: "SpanWithoutQuarantine", why: "an empty span changes its size class without quarantine",
		edits: []edit{{
			file: "internal/block/quarantine.go",
			old:  "q.ends[sp.batch%batchesMax] > now {\n",
			new:  "q.ends[sp.batch%batchesMax] > now+q.length {\n",
		}},
		caught: []test{
			{"internal/block", "TestPagesAgainstModel", "is of kind -?[0-9]+, and was of kind"},
			{"index/hash", "TestSlowReaderMeetsNoForgedRow", "the row's memory is another's"},
		},
	},
	{
		name: "TurnNotRaised", why: "clients are not told that memory of rows will change its use",
		edits: []edit{{
			file: "internal/block/quarantine.go",
			old:  "Store(0, uint64(q.turn)+1)\n",
			new:  "Store(0, uint64(q.turn)*0)\n",
		}},
		caught: []test{
			{"internal/block", "TestPagesAgainstModel", "in the same turn"},
			{"index/hash", "TestForgedRowIsNotBelieved", "a forged row is found"},
		},
	},
	{
		name: "EmptySpansStayEmpty", why: "rows get new memory beside spans of their size that are empty",
		edits: []edit{
			{
				file: "internal/block/rows.go",
				old:  "	if s.empty != 0 {\n		s.takeBack()\n	} else if err := s.newSpan(); err != nil {\n",
				new:  "	if err := s.newSpan(); err != nil {\n",
			},
			{
				file: "internal/block/rows.go",
				old:  "	if addr, ok := s.take(); ok || s.empty == 0 {\n		return addr, ok\n	}\n	s.takeBack()\n	return s.take()\n",
				new:  "	return s.take()\n",
			},
		},
		caught: []test{{"index/hash", "TestMemoryOfBursts/grow and shrink again and again", "rows take [0-9]+ bytes, and took"}},
	},
	{
		name: "BatchesWaitLong", why: "what a burst has emptied waits half a minute for its quarantine",
		edits: []edit{{
			file: "internal/block/quarantine.go",
			old:  "	every := batchEvery\n	if pressed {\n		every = batchEveryFull\n	}\n",
			new:  "	every := 2 * batchEvery\n",
		}},
		caught: []test{{"index/hash", "TestMemoryOfBursts/grow in eight steps", "are in quarantine beside"}},
	},
	{
		name: "LocationsOfAnyAge", why: "a client uses its location cache however long ago it saw the turn",
		edits: []edit{{
			file: "index/hash/locations.go",
			old:  "	return l, age <= index.MaxLocationAge\n",
			new:  "	return l, age <= index.MaxLocationAge || true\n",
		}},
		caught: []test{{"index/hash", "TestForgedRowIsNotBelieved", "a forged row is found"}},
	},
	{
		name: "LocationsOfAnotherTurn", why: "a client keeps its location cache in a new turn",
		edits: []edit{{
			file: "index/hash/locations.go",
			old:  "	if l.words == nil || l.turn != turn {\n",
			new:  "	if l.words == nil {\n",
		}},
		caught: []test{{"index/hash", "TestForgedRowIsNotBelieved", "a forged row is found"}},
	},
}

// repeated matches a suite's report of an update that keeps its row's header.
const repeated = "header|the row is [0-9]+, true|hold although it was changed|at version"

// hashBugs are bugs of the hash index.
var hashBugs = []bug{
	{
		name: "ForgottenDeletion", why: "what an absence rests on does not tell of the deletion",
		edits: []edit{{
			file: "index/hash/lock.go",
			old:  "	s.remove(held, h.CSN())\n",
			new:  "	s.remove(held, 0)\n",
		}},
		caught: []test{{"index/hash", "TestConformance/no_location_cache/in-order/rests", "it was deleted at"}},
	},
	{
		name: "OverflowBelowHeads", why: "a chain takes over an overflow bucket with a version below that of heads which led to it",
		edits: []edit{{
			file: "index/hash/chain.go",
			old:  "	s.least = max(s.least, block.CSN(s.load(addr, freedWord))+1)\n",
			new:  "",
		}},
		caught: []test{{"index/hash", "TestVersionsOfChains", "comes to another chain with version"}},
	},
	{
		name: "AbsenceByContents", why: "the version of a hash chain depends on its contents alone, and so comes back with them",
		edits: []edit{{
			file: "index/hash/chain.go",
			old:  "	v := s.nextVersion()\n	for i :=",
			new: `	sum := uint64(1)
	for i := block.BodyWord; i < bucketWords; i++ {
		sum = hashKey(sum ^ s.edits[0].edit.Load(i))
	}
	v := block.Present(block.CSN(sum))
	for i :=`,
		}},
		caught: []test{{"server", "TestSwapIsNeverSeenHalf", "found neither of two keys"}},
	},
	{
		name: "KeepGapWord", why: "a change of a hash chain leaves the version that proves an absence",
		edits: []edit{{
			file: "index/hash/chain.go",
			old:  "	v := s.nextVersion()\n	for i :=",
			new:  "	v := block.Header(s.edits[0].edit.Load(block.HeaderWord)).Unlock()\n	for i :=",
		}},
		caught: []test{{"server", "TestChangedReadsDoNotStand", "get of nothing, View: absent row inserted: the first attempt stood"}},
	},
	{
		name: "NoKeyCheck", why: "a row is taken for the one looked for because of the way that led to it",
		edits: []edit{
			{
				file: "index/hash/get.go",
				old:  "	if o.row[keyWord] != o.key {\n",
				new:  "	if o.row[keyWord] != o.key && false {\n",
			},
			{
				file: "index/hash/get.go",
				old:  "	if o.row[keyWord] != o.key || block",
				new:  "	if block",
			},
			{
				file: "index/hash/strget.go",
				old:  "ok && string(row.key) == string(o.str)\n",
				new:  "ok\n",
			},
		},
		caught: []test{
			{"server", "TestStaleLocations", "has the row of key|is found"},
			{"index/hash", "TestTiedStrings", "never inserted|another key's|want version|says found; present: false"},
		},
	},
	{
		name: "KeepHeader", why: "an update of a row keeps the header that readers hold it against",
		edits: []edit{{
			file: "index/hash/lock.go",
			old:  "	e.Write(rowWord+lo, row[lo:hi])\n	e.Commit(h.Unlock())\n",
			new:  "	e.Write(rowWord+lo, row[lo:hi])\n	if held.Existed {\n		h = held.Prev\n	}\n	e.Commit(h.Unlock())\n",
		}, {
			file: "index/hash/strlock.go",
			old:  "	class, room := block.Class(held.Slot), held.Room\n",
			new:  "	if held.Existed {\n		h = held.Prev\n	}\n	class, room := block.Class(held.Slot), held.Room\n",
		}},
		caught: []test{
			{"index/hash", "TestCrowdedChains", repeated},
			{"index/hash", "TestTiedStrings", repeated},
		},
	},
	{
		name: "SlotBeforeRow", why: "a row of a string key is reachable in its new block before it is written there",
		edits: []edit{
			{
				file: "index/hash/version.go",
				old:  "	s.fill(refAddr(to), refClass(to), held.Key.Str, row, older, h)\n	s.relink(pos, makeSlot(s.hash(held.Key), to))\n",
				new:  "	s.relink(pos, makeSlot(s.hash(held.Key), to))\n	for range 1 << 10 {\n		runtime.Gosched() // so that a reader comes by\n	}\n	s.fill(refAddr(to), refClass(to), held.Key.Str, row, older, h)\n",
			},
			{file: "index/hash/version.go", old: "import (\n", new: "import (\n	\"runtime\"\n"},
		},
		caught: []test{{"index/hash", "TestTiedStrings", "always there and is reported absent|rests at version"}},
	},
	{
		name: "KeepMovedRow", why: "the block that a row has moved from stays as it was",
		edits: []edit{
			{
				file: "index/hash/version.go",
				old:  "		s.varied.Free(held.Addr, refClass(old))\n",
				new:  "		s.arena.Span(held.Addr, 1).Store(block.HeaderWord, uint64(held.Prev))\n",
			},
		},
		caught: []test{
			{"index/hash", "TestRowsMove", "the block moved from has header"},
			{"index/hash", "TestGrowingRowsBesideReaders", "holds although the key was locked|is older than version|rests at version"},
		},
	},
	{
		name: "AbsenceUnconfirmed", why: "a row of another key proves that a string key is absent, although rows move",
		edits: []edit{{
			file: "index/hash/strget.go",
			old:  "			o.unsure = true\n",
			new:  "			o.unsure = false\n",
		}},
		caught: []test{{"index/hash", "TestAbsenceIsConfirmed", "the key is there all the time"}},
	},
	{
		name: "LengthOfBlock", why: "a row that varies in size is taken to be as long as its block",
		edits: []edit{{
			file: "index/hash/strget.go",
			old:  "	o.res.Row = row.row\n",
			new:  "	o.res.Row = c.words[strWord+keyWords(len(row.key)):]\n",
		}},
		caught: []test{{"index/hash", "TestRowsMove", "words"}},
	},
}
