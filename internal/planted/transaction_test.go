package planted

const (
	// randomHistory runs random transactions without faults.
	randomHistory = "TestHistories/no faults"
	// anomaly matches the first line of the history checker's report, or the
	// error of an attempt that passed validation and that no state justifies.
	anomaly = `(?mi)contradicts what was read|^ *incompatible order: key [0-9]+ is both|^ *(lost|phantom|fractured|read skew|write skew|stale|real|g[012]|g-|internal|duplicate|unwritten|scan order)[^\n]*T[0-9][^\n]*`
)

// transactionBugs are bugs of validation, at the client and at the server.
var transactionBugs = []bug{
	{
		name: "LocksEndAttempts", why: "a View that meets a lock reads all its rows again",
		edits: []edit{{
			file: "internal/exec/flush.go",
			old:  "		if !met || now > end {\n",
			new:  "		if !met || n == 0 && now <= end {\n",
		}},
		caught: []test{{"server", "TestViewWaitsForALock", "ran its body"}},
	},
	{
		name: "LateCommits", why: "a server does not look how old the proofs of a commit are",
		edits: []edit{{
			file: "server/share.go",
			old:  "	if now := p.clock.Last(); read > now || now-read > index.MaxCommitAge {\n",
			new:  "	if now := p.clock.Last(); read > now || now-read > index.MaxCommitAge && false {\n",
		}},
		caught: []test{
			{"server", "TestLateCommitIsRefused", "21s late: 0 aborts"},
			{"server", "TestOldCommitsAreRefused", "want code"},
			{"server", "TestCommitsInTheQueueOfAStoppedServer", "succeeds as late as this"},
		},
	},
	{
		name: "TimeOfTheAnswer", why: "proofs are taken to be as young as the answer that told of the server's clock, although they were read before it",
		edits: []edit{{
			file: "internal/exec/stamp.go",
			old:  "	return max(h.now-since-since/clock.Drift-1, 0)\n",
			new:  "	return max(h.now-0*since, 0)\n",
		}},
		caught: []test{{"internal/exec", "TestHeardIsNoLater", "is taken to show"}},
	},
	{
		name: "ServersNeverStop", why: "a server's clock is taken to have run since its last answer",
		edits: []edit{{
			file: "internal/exec/stamp.go",
			old:  "	if t >= h.at {\n		return h.now\n",
			new:  "	if t >= h.at {\n		return h.now + t - h.at\n",
		}},
		caught: []test{{"internal/exec", "TestHeardIsNoLater", "is taken to show"}},
	},
	{
		name: "NoClockDrifts", why: "the clocks of clients and servers are taken to run at one rate",
		edits: []edit{{
			file: "internal/exec/stamp.go",
			old:  "	return max(h.now-since-since/clock.Drift-1, 0)\n",
			new:  "	return max(h.now-since-1, 0)\n",
		}},
		caught: []test{{"internal/exec", "TestHeardIsNoLater", "is taken to show"}},
	},
	{
		name: "EntryStaysAsItWas", why: "an entry of a secondary index whose key stays keeps the columns of before",
		edits: []edit{{
			file: "internal/exec/write.go",
			old:  "			if !slices.Equal(entryWas, entryIs) {\n",
			new:  "			if !slices.Equal(entryWas, entryIs) && len(entryIs) == 0 {\n",
		}},
	},
	{
		name: "LookupsAreForgotten", why: "a group of lookups is not proved once the next one is read",
		edits: []edit{{
			file: "internal/exec/lookups.go",
			old:  "		if g.res == nil || len(g.res.Proofs) == 0 || l.t.needsNoProofs(g.ix) {\n",
			new:  "		if g.res != nil || len(g.res.Proofs) == 0 || l.t.needsNoProofs(g.ix) {\n",
		}},
		caught: []test{{"txn", "TestLookupsAreProved", "a change of row 5000: 1 attempts"}},
	},
	{
		name: "LookupsAloneAreNotProved", why: "a View that has read only groups of lookups returns them without validation",
		edits: []edit{{
			file: "internal/exec/readset.go",
			old:  "return rs.nGet + rs.nScan + rs.nGroups }",
			new:  "return rs.nGet + rs.nScan }",
		}},
		caught: []test{{"txn", "TestLookupsAreProved", "one group: 1 attempts"}},
	},
	{
		name: "SkipViewValidation", why: "a View returns what it has read without validation",
		edits: []edit{{
			file: "internal/exec/validate.go",
			old:  "	if t.reads.n() == 0 {\n		return nil",
			new:  "	if t.reads.n() >= 0 {\n		return nil",
		}},
		caught: []test{{"server", "TestChangedReadsDoNotStand", "View: .*: the first attempt stood"}},
	},
	{
		name: "SkipSingleValidation", why: "a View of a single row or range returns it without validation",
		edits: []edit{{
			file: "internal/exec/validate.go",
			old:  "	if t.reads.n() == 0 {\n		return nil",
			new:  "	if t.reads.n() <= 1 {\n		return nil",
		}},
		caught: []test{{"server", "TestChangedReadsDoNotStand", "View: .*: the first attempt stood"}},
	},
	{
		name: "SkipCommitValidation", why: "a commit does not look at its proofs",
		edits: []edit{{
			file: "server/onestep.go",
			old:  "	for _, pr := range part.Rows {\n		if !p.holds(pr, 0) {\n			return conflict(exec.CauseRow)",
			new:  "	if part != nil {\n		return verdict{}\n	}\n	for _, pr := range part.Rows {\n		if !p.holds(pr, 0) {\n			return conflict(exec.CauseRow)",
		}},
		caught: []test{
			{"server", randomHistory, anomaly},
			{"tpcc", "TestConservation/clients killed", `w_ytd of warehouse . grew by|3\.3\.2\.[0-9]+: `},
		},
	},
	{
		name: "SkipGapValidation", why: "a commit validates rows and not gaps, so it misses phantoms",
		edits: []edit{{
			file: "server/onestep.go",
			old:  "		if !p.holds(pr, 0) {\n			return conflict(exec.CauseGap)",
			new:  "		if !p.holds(pr, 0) && false {\n			return conflict(exec.CauseGap)",
		}},
		caught: []test{{"server", "TestChangedReadsDoNotStand", "Update .*: absent row inserted: the first attempt stood"}},
	},
	{
		name: "SkipScanRows", why: "a range read is proved by its gaps alone: by its membership, and not by its rows",
		edits: []edit{{
			file: "internal/exec/commit.go",
			old:  "			for i := range r.sub.res.Entries {\n				e := ",
			new:  "			for i := range r.sub.res.Entries[:0] {\n				e := ",
		}},
		caught: []test{{"server", "TestChangedReadsDoNotStand", "scan, Update .*: row changed: the first attempt stood"}},
	},
	{
		name: "ForgetPages", why: "an iterator proves its last page alone",
		edits: []edit{{
			file: "internal/exec/pages.go",
			old:  "		k := sc.kept.of(sub.part)\n",
			new:  "		k := &keptProofs{}\n",
		}},
		caught: []test{{"txn", "TestPagesStayProven", "the rows hold"}},
	},
	{
		name: "MaskLockBit", why: "validation takes a row that another transaction has locked for unchanged",
		edits: []edit{
			{
				file: "server/partition.go",
				old:  "	return ok && s.Load(0) == pr.Word\n",
				new:  "	return ok && block.Header(s.Load(0)).Unlock() == block.Header(pr.Word)\n",
			},
			{
				file: "internal/exec/validate.go",
				old:  "			case got == p.Word:\n",
				new:  "			case got == p.Word, got == p.Word|uint64(block.LockBit):\n",
			},
		},
		caught: []test{{"server", "TestLockedIsChanged", "row locked by another transaction"}},
	},
	{
		name: "IgnoreFence", why: "validation at the client does not look at the epoch and the fence",
		edits: []edit{{
			file: "internal/exec/validate.go",
			old:  "if cause, ok := t.allowed(got, uint32(p.Word)); !ok {",
			new:  "if cause, ok := t.allowed(got, uint32(p.Word)); !ok && cause != CauseFence {",
		}},
		caught: []test{{"server", "TestFencedPartitionServesNoView", "View .* succeeds"}},
	},
	{
		name: "DoomedAnswer", why: "an error that an inconsistent attempt led to is returned without validation",
		edits: []edit{{
			file: "internal/exec/attempts.go",
			old:  "	if t.err != nil {\n		return t.err\n	}\n	if err := t.ctx.Err()",
			new:  "	if t.err != nil {\n		return t.err\n	}\n	if t.doomed != nil {\n		return t.doomed\n	}\n	if err := t.ctx.Err()",
		}},
		caught: []test{{"server", "TestErrorOfAnInconsistentAttempt", "after 1 attempts"}},
	},
	{
		name: "IgnoreIncarnation", why: "a data server that has taken the place of another is used as if it were that one",
		edits: []edit{
			{
				file: "internal/exec/connect.go",
				old:  "	case known != incarnation:\n",
				new:  "	case known != incarnation && false:\n",
			},
			{
				file: "internal/exec/connect.go",
				old:  "	if h.Replaced {\n",
				new:  "	if h.Replaced && false {\n",
			},
		},
		caught: []test{
			{"internal/cluster", "TestClientMeetsARestartedServer", "after its restart: (<nil>|.* fenced)"},
			{"internal/cluster", "TestKilledServer", "key [0-9]+: txn: no such row"},
		},
	},
	{
		name: "UnmetServersAreUsed", why: "clients use a data server that others have not met yet, so nobody notices if its memory is lost",
		edits: []edit{{
			file: "server/acquaint.go",
			old:  "		a.said.Unmet = a.unmet[i]\n",
			new:  "		_ = a.unmet[i]\n",
		}},
		caught: []test{{"txn", "TestOpenWaitsUntilServersHaveMet", "a server that is alone: <nil>"}},
	},
}
