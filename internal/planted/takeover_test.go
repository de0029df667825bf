package planted

// takeoverBugs are bugs of hosts that take over the data servers of others, and of
// what keeps their former hosts from serving. Simulated clusters find them.
var takeoverBugs = []bug{
	{
		name: "AnyCopyIsPromoted", why: "a host takes over a data server with a copy that is not in sync",
		edits: []edit{
			{
				file: "internal/cluster/takeover.go",
				old:  "t.o.host() && m.Set(server).Members.Has(k)\n",
				new:  "t.o.host() && k > 0\n",
			},
			{
				file: "internal/replica/replica.go",
				old:  "	case k < 1 || !was.Members.Has(k):\n",
				new:  "	case k < 1:\n",
			},
		},
	},
	{
		name: "SetWithoutComparing", why: "a home changes the set of its copies whatever it is now, also when another host has taken its place",
		edits: []edit{{
			file: "internal/cluster/sets.go",
			old:  "		if m.Set(server) != from {\n			return nil, nil\n		}\n",
			new:  "",
		}},
	},
	{
		name: "TimeoutProvesALoss", why: "a host takes over a data server that does not answer it for 0.3 s, before its lease has ended",
		edits: []edit{{
			file: "internal/cluster/takeover.go",
			old:  "	_, alive := s.Registered(server)\n	quiet, ok :=",
			new: `	held, alive := s.Registered(server)
	if alive && mine {
		ctx, cancel := context.WithTimeout(t.ended, 300*time.Millisecond)
		c, err := t.o.Provider.Dial(ctx, addressOf(held.Server))
		if cancel(); err == nil {
			_ = c.Close()
		} else {
			_ = t.o.Store.Evict(t.ended, server, held.Instance)
		}
	}
	quiet, ok :=`,
		}},
	},
	{
		name: "OnlyDataStaysAtAKeeper", why: "a host that keeps copies only is left with the only data of another server",
		edits: []edit{{
			file: "internal/cluster/move.go",
			old:  "	if own := ownHost(server); where.Host != own && len(serversBeside(m, own)) > 0 || needed(s, own) {\n",
			new:  "	if own := ownHost(server); where.Host != own && len(serversBeside(m, own)) > 100 || needed(s, own) {\n",
		}},
		caught: []test{{"internal/cluster", "TestAim", "while that has another server without it: host 3, want 1"}},
	},
	{
		name: "LastCopyStaysAtAKeeper", why: "a drained host that keeps copies only is left with the only data of a server that is lost",
		edits: []edit{{
			file: "internal/cluster/move.go",
			old:  "		if !elsewhere {\n			return true\n",
			new:  "		if !elsewhere {\n			return false\n",
		}},
		caught: []test{{"internal/cluster", "TestAim", "only data of a lost server: host 3, want 1"}},
	},
	{
		name: "DrainedServersLodgeAnywhere", why: "the server of a drained host goes where it keeps another one from leaving",
		edits: []edit{{
			file: "internal/cluster/move.go",
			old:  "	return !m.Drains(host) && (wish == host || m.Drains(wish))\n",
			new:  "	return !m.Drains(host) && wish >= 0\n",
		}},
		caught: []test{{"internal/cluster", "TestAim", "away from a host whose own server is to leave: host 3, want 0"}},
	},
	{
		name: "DrainWaitsForADeadHost", why: "a drained host keeps a server whose own host does not run",
		edits: []edit{{
			file: "internal/cluster/move.go",
			old:  " || !m.Drains(where.Host) || canRun(s, server, wish)) {\n",
			new:  " || m.Size > 0) {\n",
		}},
		caught: []test{{"internal/cluster", "TestAim", "while its own does not run: host 1, want 2"}},
	},
}
