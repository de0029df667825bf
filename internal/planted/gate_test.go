package planted

// gateBugs are bugs of the gate in front of first attempts.
var gateBugs = []bug{
	{
		name: "GateIsShut", why: "the gate stays as narrow as it is while all inside wait for others that it keeps out",
		edits: []edit{{
			file: "internal/exec/gate.go",
			old:  "		g.grow(min(g.mu.limit*2, gateMax))",
			new:  "		g.grow(g.mu.limit)",
		}},
		caught: []test{
			{"server", "TestUpdatesInUpdates", "deadline exceeded"},
			{"server", "TestBodiesThatWaitForLaterUpdates", "deadline exceeded"},
		},
	},
	{
		name: "GateIsOpen", why: "as many Updates as there are run at the same time, each with its connections",
		edits: []edit{{
			file: "internal/exec/gate.go",
			old:  "	return g.mu.inside < g.mu.limit &&",
			new:  "	return g.mu.inside >= 0 || g.mu.inside < g.mu.limit &&",
		}},
		caught: []test{{"server", "TestManyUpdatesFewConnections", "connections for .* goroutines"}},
	},
	{
		name: "LastComesFirst", why: "the gate lets in the one that came last",
		edits: []edit{{
			file: "internal/exec/gate.go",
			old:  "		g.mu.last.next = v\n	}\n	g.mu.last = v",
			new:  "		v.next, g.mu.first = g.mu.first, v\n	}\n	if v.next == nil {\n		g.mu.last = v\n	}",
		}},
		caught: []test{{"internal/exec", "TestGateIsFair", "enters, want 1"}},
	},
	{
		name: "GoneButInside", why: "a wait at the gate that its context ends counts as inside",
		edits: []edit{{
			file: "internal/exec/gate.go",
			old:  "	v.waits = false\n	at := &g.mu.first",
			new:  "	v.waits = false\n	g.mu.inside++\n	at := &g.mu.first",
		}},
		caught: []test{{"internal/exec", "TestGateHonoursDeadlines", "1 inside"}},
	},
	{
		name: "CrowdsHaveTheirOwnConnections", why: "all Updates of own sessions run on their own connections, however many are in progress",
		edits: []edit{{
			file: "internal/exec/crowd.go",
			old:  "	if g.own.Add(1) <= crowdMin ||",
			new:  "	if g.own.Add(1) > 0 ||",
		}},
		caught: []test{{"server", "TestManyOwnSessionsFewConnections", "connections for .* sessions"}},
	},
	{
		name: "UnknownStaysInThePool", why: "a session does not settle its transaction of unknown outcome that ran on a session of the pool",
		edits: []edit{{
			file: "internal/exec/crowd.go",
			old:  "			s.net.takeOver(p.net.unsettled)",
			new:  "			s.net.takeOver(nil)",
		}},
		caught: []test{{"server", "TestUnknownOutcomeInACrowd", "after the next transaction of its session"}},
	},
	{
		name: "LentSessionsNest", why: "a session whose Update runs on one of the pool runs another transaction inside it",
		edits: []edit{{
			file: "internal/exec/crowd.go",
			old:  "	s.lent, p.net.borrower = true, &s.net",
			new:  "	p.net.borrower = &s.net",
		}},
		caught: []test{{"server", "TestOwnSessionInACrowd", "inside an Update of the session: <nil>"}},
	},
	{
		name: "BorrowedCountsAreLost", why: "a session does not count what it has run on a session of the pool",
		edits: []edit{{
			file: "internal/exec/crowd.go",
			old:  "		s.stats.add(p.takeStats())",
			new:  "		p.takeStats()",
		}},
		caught: []test{{"server", "TestManyOwnSessionsFewConnections", "after one Update"}},
	},
	{
		name: "IdleSessionsKeepConnections", why: "idle sessions keep all connections that a server takes, while others wait for one",
		edits: []edit{{
			file: "internal/exec/room.go",
			old:  "	case most > linksKept:\n",
			new:  "	case most > 1<<20:\n",
		}},
		caught: []test{{"server", "TestManyViewsAtOnce/shm/sessions", "takes no more connections"}},
	},
	{
		name: "NobodyWaitsForRoom", why: "a transaction fails if the server takes no more connections",
		edits: []edit{{
			file: "internal/exec/room.go",
			old:  "	return errors.Is(err, rdma.ErrBusy) &&",
			new:  "	return errors.Is(err, rdma.ErrBusy) && err == nil &&",
		}},
		caught: []test{{"server", "TestTransactionsWaitForConnections", "takes no more connections"}},
	},
	{
		name: "WaitersKeepConnections", why: "sessions keep the connections that they have while they wait for others",
		edits: []edit{{
			file: "internal/exec/room.go",
			old:  "	n.giveUpLinks()\n",
			new:  "",
		}},
		caught: []test{{"server", "TestTransactionsWaitForConnections", "deadline exceeded"}},
	},
	{
		name: "LosersGoBehindAll", why: "a procedure of several servers that loses goes behind all that came later",
		edits: []edit{{
			file: "server/places.go",
			old:  "		c.seq = pl.seq\n",
			new:  "		c.seq = 0\n",
		}},
		caught: []test{
			{"server", "TestLoserKeepsItsPlace", "served before the procedure"},
			{"server", "TestPlaceAtEveryPartition", "are served before one that has lost"},
		},
	},
	{
		name: "PlacesAreInherited", why: "a session's transaction takes the place of the one before",
		edits: []edit{{
			file: "server/places.go",
			old:  "	if known && (!again || pl.tries",
			new:  "	if known && (pl.tries",
		}, {
			file: "server/lines.go",
			old:  "	if !again {\n		delete(l.places",
			new:  "	if !again && l == nil {\n		delete(l.places",
		}},
		caught: []test{{"server", "TestPlaceIsForgotten", "stands before"}},
	},
	{
		name: "PlacesForEver", why: "a session that loses again and again keeps its place for ever",
		edits: []edit{{
			file: "server/places.go",
			old:  "|| pl.tries >= placeTries ||",
			new:  "||",
		}},
		caught: []test{{"server", "TestPlaceIsForgotten/often", "stands before"}},
	},
	{
		name: "PlacesWithoutClients", why: "a session that lets its lease end keeps its place",
		edits: []edit{{
			file: "server/lines.go",
			old:  "				delete(l.places, c.session)\n			}\n			if c.alone",
			new:  "			}\n			if c.alone",
		}},
		caught: []test{{"server", "TestPlaceIsForgotten/in_vain", "stands before"}},
	},
	{
		name: "ReadsAreMadeAgain", why: "a procedure that has lost at its home reads at other servers while rows are reserved for it",
		edits: []edit{{
			file: "internal/exec/kept.go",
			old:  "	if !k.on || len(k.gets)+len(k.scans) >= keptReadsMax {",
			new:  "	if k.on || len(k.gets)+len(k.scans) >= keptReadsMax {",
		}},
		caught: []test{{"server", "TestReadsElsewhereAreKept", "have read the balances"}},
	},
	{
		name: "ScoutsStopAtLocks", why: "a procedure that has met a lock reads at other servers only when it has its turn",
		edits: []edit{{
			file: "internal/exec/kept.go",
			old:  "	t.scouts = true\n",
			new:  "	g.own.Status = index.Locked\n",
		}},
		caught: []test{{"server", "TestReadsElsewhereBesideALock", "the body never comes to its end"}},
	},
	{
		name: "ScoutsCommit", why: "a procedure that has looked behind a lock commits what it has made of it",
		edits: []edit{{
			file: "internal/exec/procedure.go",
			old:  "	if t.scouts {\n",
			new:  "	if t.scouts && result != nil {\n",
		}},
		caught: []test{{"server", "TestReadsElsewhereBesideALock", "account . has"}},
	},
	{
		name: "KeptReadsForEver", why: "a procedure uses what another server has refused again and again",
		edits: []edit{{
			file: "internal/exec/kept.go",
			old:  "		k.on = !t.reuses\n		k.forget()\n",
			new:  "",
		}},
		caught: []test{{"server", "TestReadsElsewhereAreKept", "have read the balances"}},
	},
	{
		name: "KeptReadsAreShared", why: "the body gets a kept row itself, and may change it for its next attempt",
		edits: []edit{{
			file: "internal/exec/kept.go",
			old:  "	kept.res.Proofs, kept.res.Row = slices.Clone(g.res.Proofs), slices.Clone(g.res.Row)\n",
			new:  "	kept.res.Proofs = slices.Clone(g.res.Proofs)\n",
		}},
		caught: []test{{"server", "TestReadsElsewhereAreKept", "have read the balances"}},
	},
	{
		name: "KeptReadsAreYoung", why: "the age of kept reads is taken for that of the attempt that uses them",
		edits: []edit{{
			file: "internal/exec/kept.go",
			old:  "	if t.reuses {\n		return",
			new:  "	if t.reuses && t.s == nil {\n		return",
		}},
		caught: []test{{"internal/exec", "TestAgeOfKeptReads", "are said to be"}},
	},
}
