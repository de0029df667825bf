package planted

// snapshotBugs are bugs of snapshots: of their time, and of the versions that
// they read.
var snapshotBugs = []bug{
	{
		name: "TimeOfOnePartition", why: "a snapshot takes its time from one partition, and not from those that it touches later",
		edits: []edit{{
			file: "internal/exec/snapshot.go",
			old:  "		for p := range placement.Partition(sn.db.Partitions()) {\n			sn.list = append(sn.list, p)\n",
			new:  "		for p := range placement.Partition(1) {\n			sn.list = append(sn.list, p)\n",
		}},
		caught: []test{{"server", "TestSnapshotAsksAllPartitions", "misses what ended before it began"}},
	},
	{
		name: "TimeBeforeTheDecision", why: "a snapshot of some partitions takes the ticks that they show before what had voted there is decided",
		edits: []edit{{
			file: "internal/exec/snapshot.go",
			old:  "	if err == nil && sn.stale == 0 {\n		if err = sn.awaitClosed",
			new:  "	if err == nil && false {\n		if err = sn.awaitClosed",
		}},
		caught: []test{{"server", "TestPartialSnapshotHasWhatEnded", "misses what ended before it began"}},
	},
	{
		name: "NarrowTime", why: "a snapshot reads a partition that it has not asked for its tick at that of others",
		edits: []edit{{
			file: "internal/exec/snapshot.go",
			old:  "	case t.at != notYet:\n		sn.wider = true\n		return t.abandon(CauseRemote)\n",
			new:  "	case t.at != notYet:\n		return nil\n",
		}},
		caught: []test{{"server", "TestPartialSnapshotWidens", "misses what ended before it began"}},
	},
	{
		name: "OpenTick", why: "a snapshot reads at a tick that partitions have not closed",
		edits: []edit{{
			file: "internal/exec/snapshot.go",
			old:  "			if sn.lines.of[p].closed() < t.at {\n",
			new:  "			if sn.lines.of[p].closed() < t.at && false {\n",
		}},
		caught: []test{{"server", "TestSnapshotsBesideWriters/inproc", "rows with .* in all, want|is not closed"}},
	},
	{
		name: "FloorNotRead", why: "a snapshot does not look at the floor after its reads",
		edits: []edit{{
			file: "internal/exec/snapshot.go",
			old:  "	for _, p := range sn.touched {\n		if err := sn.retained(t, p); err != nil {\n",
			new:  "	for _, p := range sn.touched[:0] {\n		if err := sn.retained(t, p); err != nil {\n",
		}},
		caught: []test{{"server", "TestSnapshotTooOld", "with a retention of [0-9.]+m?s: <nil>"}},
	},
	{
		name: "LostVersionsLeaveTheFloor", why: "an update that leaves no version because no reader is expected does not raise the floor",
		edits: []edit{{
			file: "internal/block/keep.go",
			old:  "		h.raise(tick)\n		return 0\n",
			new:  "		return 0\n",
		}},
		caught: []test{
			{"internal/block", "TestHistoryOnDemand", "kept false"},
			{"index/hash", "TestPast", "floor|tick"},
			{"index/learned", "TestPastOfClients", "floor|tick"},
		},
	},
	{
		name: "TimeBeforeVersions", why: "a snapshot asks for versions, but its time is from before",
		edits: []edit{{
			file: "internal/exec/snapshot.go",
			old:  "	if asked { //",
			new:  "	if asked && false { //",
		}},
		caught: []test{{"server", "TestSnapshotsAskForVersions", "snapshot too old"}},
	},
	{
		name: "SilentServersAreAwaited", why: "every snapshot waits for the answer of a server that should keep versions",
		edits: []edit{{
			file: "internal/exec/expect.go",
			old:  "	if clock.Fast()-q.since > askingMax {\n",
			new:  "	if false {\n",
		}},
		caught: []test{{"server", "TestSnapshotsBesideAPausedServer", "each snapshot took"}},
	},
	{
		name: "TouchedKeepsNothing", why: "a snapshot reads at a server that may keep no versions for it",
		edits: []edit{{
			file: "internal/exec/snapshot.go",
			old:  "	} else if err := sn.expectTouched(t); err != nil {\n",
			new:  "	} else if err := error(nil); err != nil {\n",
		}},
		caught: []test{{"server", "TestSnapshotsBesideAPausedServer", "in run 1 of the body|snapshot too old"}},
	},
	{
		name: "HopelessViewsAreRepeated", why: "each View repeats long attempts in vain, whatever others have learned",
		edits: []edit{{
			file: "internal/exec/escalation.go",
			old:  "	case e.long && !e.again && h.use():\n",
			new:  "	case false:\n",
		}},
		caught: []test{
			{"internal/exec", "TestHopelessViewsAreNotRepeated", "View 0 after it lost 4 attempts, want 1"},
			{"server", "TestOvertakenViewsTeachOthers", "View 1 has lost"},
		},
	},
	{
		name: "HopelessForever", why: "a View that succeeds after a long attempt in vain teaches nothing",
		edits: []edit{{
			file: "internal/exec/escalation.go",
			old:  "	if t.err == nil && t.mode == view && e.long {\n",
			new:  "	if false {\n",
		}},
		caught: []test{{"internal/exec", "TestHopelessViewsAreNotRepeated", "has taught nothing"}},
	},
	{
		name: "FloorAfterFree", why: "versions are freed before the floor is published that gives them up",
		edits: []edit{{
			file: "internal/block/history.go",
			old:  "		h.raise(tick)\n	}\n	h.freeFirst()\n",
			new:  "		defer h.raise(tick)\n	}\n	h.freeFirst()\n",
		}},
		caught: []test{{"internal/block", "TestFloorIsPublishedBeforeMemoryIsFreed/out of memory", "while a version overwritten at 20 is being freed"}},
	},
	{
		name: "FreedEarly", why: "a version is freed while a reader at the floor may need it",
		edits: []edit{{
			file: "internal/block/history.go",
			old:  "h.queue.first().tick <= floor; most--",
			new:  "h.queue.first().tick <= floor+1; most--",
		}},
		caught: []test{{"internal/block", "TestHistoryServesAReaderAtTheFloor", "a reader of tick 7 needs the one overwritten at 8"}},
	},
	{
		name: "SeenStaysHere", why: "a client does not tell the servers which ticks it has seen, so what it commits may be before those for a snapshot",
		edits: []edit{{
			file: "internal/exec/commit.go",
			old:  "s.commit.ID, s.commit.Sent, s.commit.Seen = id, sent, s.db.seen.Tick()",
			new:  "s.commit.ID, s.commit.Sent, s.commit.Seen = id, sent, 0",
		}},
		caught: []test{{"server", "TestCommitsFollowWhatTheirClientHasSeen", "and then an update: ticks"}},
	},
	{
		name: "LastTickIsForgotten", why: "a server that stops does not log the last tick that readers may have of it",
		edits: []edit{{
			file: "server/server.go",
			old:  "			s.durable.noteLastTick()\n",
			new:  "			s.durable.ending.Store(true)\n",
		}},
		caught: []test{
			{"server", "TestLastTickOutlivesAStop", "begins at tick"},
			{"server", "TestLastTickGoesToTheCopies", "begins at tick"},
		},
	},
	{
		name: "LastTickStaysHere", why: "a server that stops does not wait until its copies have its last tick",
		edits: []edit{{
			file: "server/durability.go",
			old:  "	if err == nil && d.group != nil && d.mayAnswer() {",
			new:  "	if err == nil && d.group != nil && d.mayAnswer() && at == 0 {",
		}},
		caught: []test{{"server", "TestLastTickGoesToTheCopies", "begins at tick"}},
	},
	{
		name: "SeenTickIsDropped", why: "a tick that a client has seen is forgotten if the disk is behind the log",
		edits: []edit{{
			file: "server/ticks.go",
			old:  "			return logVerdict(err)\n",
			new:  "			return verdict{}\n",
		}},
		caught: []test{{"server", "TestSeenTickOnAFullDisk", "a call on a full disk"}},
	},
	{
		name: "SnapshotsWrite", why: "a snapshot takes writes, which nobody ever sends",
		edits: []edit{{
			file: "internal/exec/write.go",
			old:  "	if t.mode != update {\n",
			new:  "	if t.mode == view {\n",
		}},
		caught: []test{{"server", "TestSnapshotsOnlyRead", "in a snapshot of .*: <nil>"}},
	},
}

func init() { bugs = append(bugs, snapshotBugs...) }
