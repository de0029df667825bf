package planted

// horizonBugs are bugs of clients of durable servers.
var horizonBugs = []bug{
	{
		name: "AbsenceIsNotWaitedFor", why: "a View does not wait until the deletion behind an absence is durable",
		edits: []edit{{
			file: "internal/exec/validate.go",
			old:  "	v.control(g.part, g.res.Rests)\n",
			new:  "	v.control(g.part, g.res.Header.CSN())\n",
		}},
		caught: []test{{"server", "TestHorizonIsWaitedFor/inproc", "an absence ends before its answer is durable"}},
	},
	{
		name: "RangeIsNotWaitedFor", why: "a View does not wait until the deletions behind a range are durable",
		edits: []edit{{
			file: "internal/exec/validate.go",
			old:  "		v.control(sub.part, sub.res.Rests)\n",
			new:  "		var rests block.CSN\n		for i := range sub.res.Entries {\n			rests = max(rests, sub.res.Entries[i].Header.CSN())\n		}\n		v.control(sub.part, rests)\n",
		}},
		caught: []test{{"server", "TestHorizonIsWaitedFor/inproc", "an empty range ends before its answer is durable"}},
	},
	{
		name: "PagesAreNotWaitedFor", why: "a View waits for the last page of an iterator alone",
		edits: []edit{{
			file: "internal/exec/validate.go",
			old:  "		v.control(k.part, k.rests)\n",
			new:  "		v.control(k.part, 0)\n",
		}},
		caught: []test{{"server", "TestHorizonIsWaitedFor/inproc", "an iterator ends before its answer is durable"}},
	},
	{
		name: "SnapshotIsNotWaitedFor", why: "a Snapshot returns what is not durable",
		edits: []edit{{
			file: "internal/exec/snapshot.go",
			old:  "		sn.validator.restOnTime(t, p)\n",
			new:  "",
		}},
		caught: []test{{"server", "TestHorizonIsWaitedFor/inproc", "a Snapshot ends before its answer is durable"}},
	},
	{
		name: "NothingIsWaitedFor", why: "a View returns what is not durable, and what a crash undoes",
		edits: []edit{{
			file: "internal/exec/durable.go",
			old:  "		if len(v.late) == 0 {\n",
			new:  "		if len(v.late) >= 0 {\n",
		}},
		caught: []test{
			{"server", "TestClientsOutliveCrashes", "client [0-9], key [0-9]+: [0-9]+, and was [0-9]+"},
			{"server", "TestAnswersWait", "a View of its row did not wait"},
		},
	},
	{
		name: "ProofsOfAnyEpoch", why: "a partition takes a commit whose proofs and hints are of its memory before it recovered",
		edits: []edit{{
			file: "server/onestep.go",
			old:  "	if part.Memory != 0 && part.Memory != p.epoch {\n",
			new:  "	if part.Memory != 0 && part.Memory != p.epoch && false {\n",
		}},
		caught: []test{{"server", "TestProofsOfAnotherEpoch", "no attempt was refused because of another epoch"}},
	},
	{
		name: "RestsAreNotInAnswers", why: "the answer to a read by RPC does not tell what it rests on",
		edits: []edit{{
			file: "internal/wire/read.go",
			old:  "	b = le.AppendUint64(append(b, byte(r.Status), more), uint64(r.Rests))\n",
			new:  "	b = le.AppendUint64(append(b, byte(r.Status), more), 0)\n",
		}},
		caught: []test{{"server", "TestHorizonIsWaitedFor/inproc", "a range ends before its answer is durable"}},
	},
}
