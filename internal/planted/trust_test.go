package planted

// trustBugs are bugs of clients that READ the memory of servers with leases, and of
// those servers.
var trustBugs = []bug{
	{
		name: "DecisionWithoutThePlace", why: "a server whose lease has ended hands over and tells what it has decided",
		edits: []edit{
			{
				file: "server/durability.go",
				old:  "err != nil || d.safe() >= at && d.mayAnswer() {\n",
				new:  "err != nil || d.safe() >= at {\n",
			},
			{
				file: "server/steps.go",
				old:  "	if at <= d.safe() && d.mayAnswer() && !d.owes(ms) {\n",
				new:  "	if at <= d.safe() && !d.owes(ms) {\n",
			},
		},
		caught: []test{{"server", "TestNoDecisionLeavesWithoutThePlace", "other servers have committed what the server has decided without its place"}},
	},
	{
		name: "PlaceIsLookedAtOnce", why: "answers are released although the lease has ended since the place was looked at",
		edits: []edit{{
			file: "server/durability.go",
			old:  "	may = may && d.mayAnswer()\n",
			new:  "",
		}},
		caught: []test{{"server", "TestPlaceIsLookedAtLast", "after the place was lost"}},
	},
	{
		name: "TrustFromTheAnswer", why: "the time for which a server is trusted counts from its answer, not from before the question",
		edits: []edit{{
			file: "internal/exec/trust.go",
			old:  "	lf.trust.take(asked, a.Left)\n",
			new:  "	asked = clock.Now()\n	lf.trust.take(asked, a.Left)\n",
		}},
		caught: []test{{"server", "TestLateAnswerTrustsNothing", "rests on an answer that came late: <nil>"}},
	},
	{
		name: "AnswersAreNotLookedAt", why: "a session asks a server for its lease although another one has just had the answer",
		edits: []edit{{
			file: "internal/exec/trust.go",
			old:  "	case open != nil && !open(q.since):\n",
			new:  "	case open != nil && q.since < 0:\n",
		}},
		caught: []test{{"internal/exec", "TestAnsweredQuestion", "is asked again"}},
	},
	{
		name: "TrustBeforeValidation", why: "a View looks before its validation whether the servers are trusted, and not after it",
		edits: []edit{{
			file: "internal/exec/validate.go",
			old:  "	if err := v.prove(t); err != nil {\n		return err\n	}\n	return v.settleReads(t)\n",
			new:  "	if t.reads.n() > 0 {\n		v.list(t, false)\n		if err := v.awaitTrust(t); err != nil {\n			return err\n		}\n	}\n	if err := v.prove(t); err != nil {\n		return err\n	}\n	return v.awaitDurable(t)\n",
		}},
		caught: []test{{"server", "TestTrustIsLookedAtLast", "and was validated later: <nil>"}},
	},
	{
		name: "TrustOfAnotherEpoch", why: "an answer about the lease of another epoch counts for the memory of this one",
		edits: []edit{{
			file: "internal/exec/trust.go",
			old:  "	case a.Epoch != lf.epoch || a.Incarnation != lf.incarnation:\n",
			new:  "	case a.Incarnation != lf.incarnation:\n",
		}},
		caught: []test{{"server", "TestAnswerOfAnotherLife", "rests on an answer of (a later|an earlier) epoch: <nil>"}},
	},
	{
		name: "NothingIsDistrusted", why: "Views do not look at the leases of servers at all",
		edits: []edit{{
			file: "internal/exec/trust.go",
			old:  "		if lf.trusted(v.db, now) {\n",
			new:  "		if lf.trusted(v.db, now) || true {\n",
		}},
		caught: []test{
			{"server", "TestNoViewWithoutALease/inproc", "at a server without a lease: <nil>"},
			{"server", "TestNoViewWithoutALease/tcp", "at a server without a lease: <nil>"},
			{"server", "TestStoppedProcessServesNoView/shm", "after the process was stopped succeeds"},
			{"internal/cluster", "TestPlaceOfAPausedServer", "a client that knows the former process alone reads"},
		},
	},
	{
		name: "TimeOfAnyServer", why: "a Snapshot takes its time from a server that may have lost its place",
		edits: []edit{{
			file: "internal/exec/snapshot.go",
			old:  "	return sn.leases.trustTimes(ctx)\n",
			new:  "	return nil\n",
		}},
		caught: []test{{"server", "TestTimeOfTrustedServers", "the other server is without a lease: <nil>, and the time was asked of those read: false"}},
	},
	{
		name: "RatesOfClocksAreEqual", why: "a server promises its place as if the clock of the store ran at the rate of its own",
		edits: []edit{{
			file: "internal/member/member.go",
			old:  " - l.TTL()/clock.Drift",
			new:  " + 0/clock.Drift",
		}},
		caught: []test{{"internal/exec", "TestTrustEndsBeforeThePlaceIsTaken", "another process has the place"}},
	},
	{
		name: "LeaseOfAServedMemory", why: "a data server that hangs when it closes gives its lease back, and its memory is still served",
		edits: []edit{{
			file: "internal/cluster/place.go",
			old:  "		if p.hangs.Load() {\n",
			new:  "		if false && p.hangs.Load() {\n",
		}},
		caught: []test{{"internal/cluster", "TestHangingServerKeepsItsLease", "hangs: true; it has its lease: false"}},
	},
	{
		name: "LeaseOfAGuestThatHangs", why: "a host goes on renewing the lease of a server that it has ended, and that hangs",
		edits: []edit{{
			file: "internal/cluster/place.go",
			old:  "			if err := l.Leave(ended); err",
			new:  "			if err := ended.Err(); err",
		}},
		caught: []test{{"internal/cluster", "TestHangingGuestIsTakenOver", "server 0 is not at host 0"}},
	},
	{
		name: "DirectoryOfAGuestThatHangs", why: "a host takes a server over again although its former one has not closed there",
		edits: []edit{{
			file: "internal/cluster/takeover.go",
			old:  "prepare: func(string, *member.Map) error { return t.clear(server) },",
			new:  "prepare: func(string, *member.Map) error { return datadir.RemoveCopy(t.o.fs(), homeDir(t.dir, server)) },",
		}},
		caught: []test{{"internal/cluster", "TestHangingGuestIsTakenOver", "directory of a server that hangs is removed"}},
	},
	{
		name: "FormerPlaceIsNotLeft", why: "connections to a process whose place another one has taken stay, and those that wait there wait on",
		edits: []edit{{
			file: "internal/cluster/members.go",
			old:  "			led.Abandon(addr)\n",
			new:  "			_ = addr\n",
		}},
		caught: []test{{"internal/cluster", "TestPlaceOfAPausedServer", "at the other process"}},
	},
}
