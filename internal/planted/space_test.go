package planted

import "slices"

// spaceBugs are bugs of the room that the commit protocol needs in the log.
var spaceBugs = []bug{
	{
		name: "NothingSetAside", why: "shares are locked although the log may have no room for what is decided",
		edits: []edit{{
			file: "server/effects.go",
			old:  "	if w := b.setAside(held, b.locks[0].ID); !w.ok() {\n		held, v = nil, w\n	}\n",
			new:  "",
		}, {
			file: "server/debts.go",
			old:  "// debt is a record for which the log had no room.\n",
			new:  "var _ = (*batch).setAside\n\n// debt is a record for which the log had no room.\n",
		}},
		caught: []test{{"server", "TestFullDiskInACommit/3 servers, rows of 8 bytes", "without space: .*(locked|not durable yet)|the transaction, after .*outcome unknown"}},
	},
	{
		name: "OthersTakeWhatIsSetAside", why: "any record takes the room that was set aside for decisions",
		edits: []edit{{
			file: "internal/wal/wal.go",
			old:  "	case l.mu.end+size+l.mu.aside-aside <= l.mu.limit:\n",
			new:  "	case l.mu.end+size <= l.mu.limit:\n",
		}},
		caught: []test{{"internal/wal", "TestSetAside", "a record for which room was set aside: .*no space"}},
	},
	{
		name: "RefusedShareStaysLocked", why: "a share for which the log has no room keeps its locks",
		edits: []edit{{
			file: "server/debts.go",
			old:  "			t.decide(false, 0)\n",
			new:  "			_ = t\n",
		}},
		caught: []test{{"server", "TestFullDiskInACommit/3 servers, rows of 8 bytes", "with(out)? space: .*locked|gave up after|deadline exceeded"}},
	},
	{
		name: "RoomIsNotGivenUp", why: "what was set aside for a share that is decided otherwise stays set aside",
		edits: []edit{{
			file: "server/prepared.go",
			old:  "		d.log.GiveUp(t.aside.take(twophase.Decided))\n",
			new:  "		_ = d\n",
		}},
		caught: []test{{"server", "TestRefusedCommitGivesRoomUp", "bytes of the log set aside"}},
	},
	{
		name: "SpaceIsNotSoughtAgain", why: "a log whose room was given up while there was no space does not look for space again",
		edits: []edit{{
			file: "internal/wal/prepare.go",
			old:  "			l.mu.noSpace = nil // room that was set aside may have been returned\n",
			new:  "			_ = l\n",
		}},
		caught: []test{{"internal/wal", "TestGivenUpWithoutSpace", "the log has found no space: true"}},
	},
	{
		name: "FailedLogTells", why: "a home server tells its client of a commit that its log, which has failed, does not have",
		edits: []edit{{
			file: "server/recording.go",
			old:  "	switch n := len(rc.debts); {\n	case n == 0:\n",
			new:  "	switch n := len(rc.debts); {\n	case n >= 0:\n",
		}},
		caught: []test{{"server", "TestDecisionOfAFailedLog", "the client was told <nil>"}},
	},
}

func init() { bugs = slices.Concat(bugs, spaceBugs) }
