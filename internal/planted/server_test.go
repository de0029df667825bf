package planted

// serverBugs are bugs of the executor, of commits over several partitions, and
// of the memory of outcomes.
var serverBugs = []bug{
	{
		name: "UnlockEarly", why: "a commit locks, writes and unlocks each row before it locks the next",
		edits: []edit{
			{
				file: "server/partition.go",
				old:  "	held, v := p.lockAll(p.owners, part.Writes, p.held[:0])\n	p.held = held[:0]\n",
				new:  "	if part != nil {\n		return p.commitRowByRow(part)\n	}\n	held, v := p.lockAll(p.owners, part.Writes, p.held[:0])\n	p.held = held[:0]\n",
			},
			{
				file: "server/partition.go",
				old:  "// prepare validates and locks",
				new: `// commitRowByRow pauses between rows, for a reader seldom comes in between.
func (p *partition) commitRowByRow(part *wire.Part) verdict {
	held, v := p.lockAll(p.owners, part.Writes, nil)
	for i, h := range held {
		p.indexes[part.Writes[i].Index].Release(h)
	}
	if !v.ok() {
		return v
	}
	for i := range part.Writes {
		held, v := p.lockAll(p.owners, part.Writes[i:i+1], p.held[:0])
		if !v.ok() {
			return v
		}
		p.applyAll(part.Writes[i:i+1], held, p.nextCSN())
		time.Sleep(50 * time.Microsecond)
	}
	p.commits++
	return verdict{}
}

// prepare validates and locks`,
			},
		},
		caught: []test{{"server", randomHistory, anomaly}},
	},
	{
		name: "KeepLocks", why: "a lock that fails leaves the locks taken before it",
		edits: []edit{{
			file: "server/partition.go",
			old:  "			for i, h := range held {\n				p.indexes[writes[i].Index].Release(h)\n			}\n			return held[:0], v",
			new:  "			return held[:0], v",
		}},
		caught: []test{{"server", "TestFailedCommitLeavesNoLock", "after a failed commit: .*conflict"}},
	},
	{
		name: "BrokenLinksAreKept", why: "when a connection to another server breaks, the others to it are used again",
		edits: []edit{{
			file: "server/peers.go",
			old:  "	p := l.peer\n	p.mu.Lock()\n	idle := p.mu.idle\n	p.mu.idle = nil\n	p.mu.Unlock()\n	for _, i := range idle {\n		i.conn.Close()\n	}\n}\n",
			new:  "}\n",
		}},
		caught: []test{
			{"server", "TestBrokenLinksAreRenewed", "a transaction over both servers: not at attempt"},
			{"server", "TestLinksToARestartedServer", "a transaction of the survivor: not at attempt"},
		},
	},
	{
		name: "ForgottenIsUnknown", why: "a session whose outcome was forgotten is told that the server has never seen its transaction",
		edits: []edit{{
			file: "server/outcomes.go",
			old:  "		if f == nil && o.mayHaveForgotten(r.From) {\n",
			new:  "		if f == nil && o.mayHaveForgotten(r.From) && false {\n",
		}},
		caught: []test{{"server", "TestForgottenOutcomesAreInDoubt", "a forgotten commit is answered"}},
	},
	{
		name: "QuarantineEndsWhileStopped", why: "memory leaves its quarantine while the server is stopped, with commits in its queue",
		edits: []edit{{
			file: "server/partition.go",
			old:  "Clock: running.Now,",
			new:  "Clock: cfg.clock,",
		}},
		caught: []test{{"server", "TestCommitsInTheQueueOfAStoppedServer", "since deleted, is answered 0"}},
	},
	{
		name: "NoSharedLocks", why: "what a prepared transaction has read can be written before the decision",
		edits: []edit{{
			file: "server/partition.go",
			old:  "	for _, pr := range part.Rows {\n		p.shared.add(pr.Addr, o)\n	}\n	for _, pr := range part.Gaps {\n		p.shared.add(pr.Addr, o)\n	}\n",
			new:  "",
		}},
		caught: []test{{"server", "TestPreparedReadsStay", "read by a prepared transaction, was written"}},
	},
	{
		name: "SharedLocksLast", why: "shared locks are taken where the proofs were before the transaction's own inserts moved them",
		edits: []edit{
			{
				file: "server/partition.go",
				old:  "	p.share(part, t.owner)\n	held, v",
				new:  "	held, v",
			},
			{
				file: "server/partition.go",
				old:  "	t.held = held\n",
				new:  "	p.share(part, t.owner)\n	t.held = held\n",
			},
		},
		caught: []test{{"server", "TestPreparedReadsStay", "read by a prepared transaction, was written"}},
	},
	{
		name: "RepeatVersions", why: "the versions of rows start again after a few",
		edits: []edit{{
			file: "server/partition.go",
			old:  "held []*index.Held, csn block.CSN) {\n	if invariants.Enabled {\n		checkLocked",
			new:  "held []*index.Held, csn block.CSN) {\n	csn = block.NewCSN(1, 2+csn.Seq()%4)\n	if invariants.Enabled {\n		checkLocked",
		}},
		caught: []test{{"server", "TestChangedReadsDoNotStand", "row changed and changed back: the first attempt stood"}},
	},
	{
		name: "FirstRefusal", why: "of several refusals the first is the answer, whatever it says",
		edits: []edit{{
			file: "server/share.go",
			old:  "	if b.weight() > a.weight() {\n",
			new:  "	if b.weight() > a.weight() && a.ok() {\n",
		}},
		caught: []test{{"server", "TestHeaviestVerdictCounts", "a refusal counts although"}},
	},
	{
		name: "DialIsGone", why: "a dial that fails is taken for proof that the memory of a server is gone",
		edits: []edit{{
			file: "server/peers.go",
			old:  "	l, err := p.link(ctx)\n	if err != nil {\n		return err\n	}\n	if slices",
			new:  "	l, err := p.link(ctx)\n	if err != nil {\n		b := &batch{s: p.s}\n		for _, m := range ms {\n			b.gone(m.To)\n		}\n		b.settle()\n		return err\n	}\n	if slices",
		}},
		caught: []test{
			{"server", "TestDialErrorsProveNothing", "committed"},
			{"server", "TestHistories/failed dials and many decisions", anomaly + "|a transaction that writes every key"},
		},
	},
	{
		name: "LostWakeup", why: "a request that waits for a transaction in doubt is not told of the decision",
		edits: []edit{{
			file: "server/parking.go",
			old:  "		if !p.attempt(q) {\n",
			new:  "		if q != nil {\n",
		}},
		caught: []test{{"server", "TestParkedIsWoken", "was not woken by the decision"}},
	},
	{
		name: "RunParkedTwice", why: "a request that has waited is carried out once more before it is answered",
		edits: []edit{{
			file: "server/parking.go",
			old:  "		over = append(over, q)\n",
			new:  "		p.attempt(q)\n		over = append(over, q)\n",
		}},
		caught: []test{
			{"server", "TestParkedIsWoken", "carried out twice"},
			{"server", randomHistory, anomaly},
		},
	},
	{
		name: "ForgetOutcomes", why: "a repeated request is carried out again",
		edits: []edit{{
			file: "server/outcomes.go",
			old:  "	case id.Seq > f.seq && (f.done || f.seq == 0):\n",
			new:  "	case id.Seq > 0:\n",
		}},
		caught: []test{
			{"server", "TestRepeatedRequestsTakeEffectOnce", "(?i)duplicate"},
			{"tpcc", "TestConservation/all at once", `in history \[.*\} \{`},
		},
	},
}
