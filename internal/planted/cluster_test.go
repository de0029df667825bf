package planted

// fabricBugs are bugs of access checks, of providers and of runtime directories, and
// of a provider's reports.
var fabricBugs = []bug{
	{
		name: "OrderedBatchIsShuffled", why: "the adversary performs an ordered batch in any order",
		edits: []edit{{
			file: "rdma/inproc/adversary.go",
			old:  "a.rng.Bool(a.o.Faults.Reorder) && !b.Ordered,",
			new:  "a.rng.Bool(a.o.Faults.Reorder),",
		}},
		caught: []test{
			{"rdma/inproc", "TestConformance/adversaryInOrder/OrderedBatch", "the word was"},
			{"rdma/inproc", "TestOrderedBatchesBreakInOrder", "and others: true"},
		},
	},
	{
		name: "LateAfterLost", why: "of a broken ordered batch a WRITE takes effect late, and one before it never",
		edits: []edit{{
			file: "rdma/inproc/adversary.go",
			old:  " && !(b.Ordered && c.adv.ended) {\n",
			new:  " {\n",
		}},
		caught: []test{{"rdma/inproc", "TestOrderedBatchesBreakInOrder", "and others: true"}},
	},
	{
		name: "LateAfterRevoke", why: "a peer's WRITE that was in flight takes effect after its access was revoked",
		edits: []edit{{
			file: "rdma/inproc/conn.go",
			old:  "	if e.revoked[c.peer] {\n",
			new:  "	if e.revoked[c.peer+1] {\n",
		}},
		caught: []test{{"rdma/inproc", "TestNothingIsLateAfterRevoke", "after Revoke the words are"}},
	},
	{
		name: "AgentServesRevoked", why: "the agent of shared memory performs verbs of a peer whose access was revoked",
		edits: []edit{{
			file: "rdma/shm/agent.go",
			old:  "	if c.ended {\n		return false\n	}\n	err := errWire\n",
			new:  "	err := errWire\n",
		}},
		caught: []test{{"rdma/shm", "TestConformance/RevokeEndsThePeer", "after Revoke word"}},
	},
	{
		name: "GrantOfEveryRegion", why: "a grant of one region is one of others, too",
		edits: []edit{{
			file: "rdma/internal/provide/extra.go",
			old:  "		return (*all)[k-1]\n",
			new:  "		return (*all)[len(*all)-1]\n",
		}},
		caught: []test{{"rdma/inproc", "TestConformance/plain/GrantIsForOnePeer", "of the other region is granted"}},
	},
	{
		name: "NICOfEachMessage", why: "messages to a modelled machine do not queue at its NIC",
		edits: []edit{{
			file: "rdma/inproc/node.go",
			old:  "	n.nic = max(n.nic, at) + n.message(bytes)\n",
			new:  "	n.nic = at + n.message(bytes)\n",
		}},
		caught: []test{{"rdma/inproc", "TestNodeQueues", "another, at the same time"}},
	},
	{
		name: "CoreOfEachRequest", why: "requests to a modelled machine do not queue at its cores",
		edits: []edit{{
			file: "rdma/inproc/node.go",
			old:  "	n.cores[core] = max(n.cores[core], arrived) + n.stretch(n.RPC+took)\n",
			new:  "	n.cores[core] = arrived + n.stretch(n.RPC+took)\n",
		}},
		caught: []test{{"rdma/inproc", "TestNodeQueues", "waits for the first core"}},
	},
	{
		name: "DyingClusterIsBusy", why: "a process that was killed, and has not given its runtime directory up, counts as a cluster that runs",
		edits: []edit{{
			file: "internal/cluster/dir.go",
			old:  "!errors.Is(err, ErrBusy) || d.listens() || !time",
			new:  "!errors.Is(err, ErrBusy) || err != nil || d.listens() || !time",
		}},
		caught: []test{{"internal/cluster", "TestDyingProcessHoldsTheLock", "a cluster runs already"}},
	},
	{
		name: "DisconnectBeforeServe", why: "a fabric reports disconnects before the server has made what they touch",
		edits: []edit{{
			file: "rdma/shm/serverlink.go",
			old:  " && c.link.e.Handler() != nil",
			new:  "",
		}},
		caught: []test{{"rdma/shm", "TestConformance/DisconnectBeforeServeIsToldLater", "gone before Serve"}},
	},
	{
		name: "PollerSpinsForEver", why: "a poller without requests keeps polling and uses a core",
		edits: []edit{{
			file: "rdma/shm/poller.go",
			old:  "took < budget; took = now() - start",
			new:  "budget > 0 && !p.e.Closed(); took = now() - start",
		}},
		caught: []test{{"rdma/shm", "TestIdlePollerSleeps", "sleep of a poller without requests: not within"}},
	},
	{
		name: "DisconnectOvertakesCall", why: "a call from before Serve is handled after the disconnect of its peer",
		edits: []edit{{
			file: "rdma/inproc/poller.go",
			old:  "	h := p.e.Handler()\n	if h == nil {\n",
			new:  "	h := p.e.Handler()\n	if h == nil && ev.kind != eventGone {\n",
		}},
		caught: []test{{"rdma/inproc", "TestConformance/plain/DisconnectBeforeServeIsToldLater", "gone before Serve|after its disconnect"}},
	},
	{
		name: "AnyProof", why: "a peer that claims to be a data server is believed whatever it proves",
		edits: []edit{{
			file: "rdma/internal/provide/secret.go",
			old:  "	return len(proof) >= ProofBytesMin && len(proof) <= len(want) && hmac.Equal(proof, want[:len(proof)])\n",
			new:  "	return len(proof) >= ProofBytesMin && len(proof) <= len(want) && hmac.Equal(want[:], want[:])\n",
		}},
		caught: []test{{"rdma/tcp", "TestPeersInPlainText", "stranger 0: <nil>"}, {"server", "TestARoleIsNotClaimed/plain_tcp", "without the secret dials as a data server: <nil>"}},
	},
	{
		name: "ServersAmongClients", why: "over tcp in plain text, clients that hold all connections keep data servers out",
		edits: []edit{{
			file: "rdma/tcp/endpoint.go",
			old:  "	if c.id.Role == rdma.RoleServer {\n		return &e.mu.servers\n",
			new:  "	if c.id.Role == rdma.RoleServer && e.p.server != nil {\n		return &e.mu.servers\n",
		}},
		caught: []test{{"rdma/tcp", "TestDataServersAlwaysGetIn/plain_text", "a data server is kept out"}},
	},
	{
		name: "AnyCapability", why: "a verb is performed whatever capability it shows",
		edits: []edit{{
			file: "rdma/tcp/capability.go",
			old:  " || !grants[v.slot].cap.equal(v.cap) {",
			new:  " {",
		}},
		caught: []test{{"rdma/tcp", "TestVerbsOutsideAGrant", "of another connection: <nil>, status 1"}},
	},
	{
		name: "IgnoreRight", why: "a verb is performed although its capability does not allow it",
		edits: []edit{{
			file: "rdma/tcp/capability.go",
			old:  "	if (g.access|x.Of(keyOf(int(v.slot))))&need == 0 {\n",
			new:  "	if g.access&need == 0 && false {\n",
		}},
		caught: []test{
			{"rdma/tcp", "TestReaderCannotWrite", "reader: WRITE has status 1 and changed memory: true"},
			{"rdma/tcp", "FuzzAgent", "without a grant to write changed"},
		},
	},
	{
		name: "OpenRuntimeDir", why: "a runtime directory is made so that all users can enter it",
		edits: []edit{{
			file: "internal/cluster/dir.go",
			old:  "os.MkdirAll(path, 0o700)",
			new:  "os.MkdirAll(path, 0o755)",
		}},
		caught: []test{{"internal/cluster", "TestRuntimeDirsArePrivate/of a cluster", "own is made with mode 0755, want 0700"}},
	},
	{
		name: "OpenDirOfAServer", why: "a data server makes a runtime directory that all users can enter",
		edits: []edit{{
			file: "internal/cluster/pidfile.go",
			old:  "	err := os.Mkdir(dir, 0o700)\n	if errors.Is(err, fs.ErrNotExist) {\n		if err = os.MkdirAll(filepath.Dir(dir), 0o700); err == nil {\n			err = os.Mkdir(dir, 0o700)\n",
			new:  "	err := os.Mkdir(dir, 0o755)\n	if errors.Is(err, fs.ErrNotExist) {\n		if err = os.MkdirAll(filepath.Dir(dir), 0o700); err == nil {\n			err = os.Mkdir(dir, 0o755)\n",
		}},
		caught: []test{{"internal/cluster", "TestRuntimeDirsArePrivate/of a data server", "own is made with mode 0755, want 0700"}},
	},
	{
		name: "GuestsAskTheirHost", why: "a data server at another host resolves addresses with maps that its host has seen, and not with its own",
		edits: []edit{{
			file: "internal/cluster/join.go",
			old:  "		if f, ok := o.Provider.(*multi.Provider); ok {\n			m.leadWith(f, m.place.follows)\n",
			new:  "		if f, ok := o.Provider.(*multi.Provider); ok && o.at == nil {\n			m.leadWith(f, m.place.follows)\n",
		}},
		caught: []test{{"internal/cluster", "TestGuestsKnowWhereOthersWere", "the guest dials tcp:198.51.100.7:1"}},
	},

	{
		name: "OpenStoreDir", why: "all users can enter the directory that has the socket of the store of members",
		edits: []edit{{
			file: "internal/cluster/hosts.go",
			old:  "os.Chmod(dir, 0o700)",
			new:  "os.Chmod(dir, 0o755)",
		}},
		caught: []test{{"internal/cluster", "TestRuntimeDirsArePrivate/of a cluster", "etcd is made with mode 0755, want 0700"}},
	},
}

// memberBugs are bugs of the stores of membership.
var memberBugs = []bug{
	{
		name: "OldCopyIsAdmitted", why: "an older copy of a data directory gets the place of the directory",
		edits: []edit{{
			file: "internal/member/admit.go",
			old:  "	case old.Instance != server.Instance && old",
			new:  "	case false && old.Instance != server.Instance && old",
		}},
		caught: []test{
			{"internal/member", "TestConformance/CopiesOfDirectories", "admitted a directory that has served"},
			{"internal/member", "TestConformance/PlacesOfDirectories", "an older copy: error <nil>"},
			{"internal/member/etcd", "TestConformance/Suite/CopiesOfDirectories", "admitted a directory that has served"},
		},
	},
	{
		name: "LifeCopyIsAdmitted", why: "a copy that was made during a life gets the place although it lacks what was durable since",
		edits: []edit{{
			file: "internal/member/admit.go",
			old:  "|| c.Log >= d.Log {\n",
			new:  "|| true {\n",
		}},
		caught: []test{
			{"internal/member", "TestConformance/LogsOfDirectories", "lacks what was noted: error <nil>"},
			{"internal/member/etcd", "TestConformance/Suite/LogsOfDirectories", "lacks what was noted: error <nil>"},
			{"internal/cluster", "TestOlderCopyOfALife", "a copy that lacks a commit: <nil>"},
		},
	},
	{
		name: "DeposedAdvances", why: "a server whose lease was taken away notes the position of its log, so that its successor's directory counts as an older copy",
		edits: []edit{{
			file: "internal/member/etcd/lease.go",
			old:  "			clientv3.Compare(clientv3.ModRevision(own), \"=\", int64(l.term)),\n",
			new:  "",
		}, {
			file: "internal/member/membertest/local.go",
			old:  "	if l.ended != nil {\n		return l.ended\n	}\n	if have",
			new:  "	if have",
		}},
		caught: []test{
			{"internal/member", "TestConformance/Advance", "a lease that was replaced: error <nil>"},
			{"internal/member/etcd", "TestConformance/Suite/Advance", "a lease that was replaced: error <nil>"},
		},
	},
	{
		name: "RecoveredIsGone", why: "a server that has recovered is known by its process, as if its state were gone",
		edits: []edit{{
			file: "internal/member/member.go",
			old:  "	if s.Incarnation != 0 {\n",
			new:  "	if false {\n",
		}},
		caught: []test{{"internal/cluster", "TestDurableServersTakeTheirPlaces", "peers count it as gone"}},
	},
	{
		name: "GivenUpLeaseGoesOn", why: "a lease that is given up while the store does not answer is renewed for as long as the process lives",
		edits: []edit{{
			file: "internal/member/etcd/lease.go",
			old:  "	l.stop(fmt.Errorf(\"%w: server %d\", member.ErrLeft, l.index))\n",
			new:  "	if ctx.Err() != nil {\n		return context.Cause(ctx)\n	}\n	l.stop(fmt.Errorf(\"%w: server %d\", member.ErrLeft, l.index))\n",
		}},
		caught: []test{{"internal/member/etcd", "TestConformance/Suite/LeaveUnasked", "context deadline exceeded"}},
	},
	{
		name: "LapseIsNoFence", why: "a durable server without a lease leaves its memory to readers",
		edits: []edit{{
			file: "server/suspend.go",
			old:  "	s.parts.fence()\n",
			new:  "",
		}},
		caught: []test{{"internal/cluster", "TestLeaseThatEndsSuspends", "view: answered by a server without a lease"}},
	},
	{
		name: "ElsewhereEndsAStart", why: "a host does not start whose data server is taken over while it starts",
		edits: []edit{{
			file: "internal/cluster/join.go",
			old:  "!errors.Is(err, member.ErrElsewhere) || !o.Return || again && !kept {",
			new:  "true || again && !kept {",
		}},
		caught: []test{{"internal/cluster", "TestTakenOverWhileItStarts", "it does not come back: .*is at another host now"}},
	},
	{
		name: "BlindSwap", why: "the map of a cluster is replaced whatever its epoch",
		edits: []edit{
			{
				file: "internal/member/membertest/local.go",
				old:  "	if current != expected {\n",
				new:  "	if current != expected && false {\n",
			},
			{
				file: "internal/member/etcd/store.go",
				old:  "	if current != expected {\n",
				new:  "	if current != expected && false {\n",
			},
			{
				file: "internal/member/etcd/store.go",
				old:  "clientv3.Compare(clientv3.ModRevision(key), \"=\", revision)\n",
				new:  "clientv3.Compare(clientv3.ModRevision(key), \">\", -1)\n	_ = revision\n",
			},
		},
		caught: []test{
			{"internal/member", "TestConformance/Swap", "second first map: error <nil>"},
			{"internal/member", "TestConformance/Contenders", "contender|after [0-9]+ changes"},
			{"internal/member/etcd", "TestConformance/Suite/Swap", "second first map: error <nil>"},
			{"internal/member/etcd", "TestConformance/Suite/Contenders", "contender|after [0-9]+ changes"},
		},
	},
	{
		name: "JoinOver", why: "a server takes an index that a live server of another instance holds",
		edits: []edit{
			{
				file: "internal/member/membertest/local.go",
				old:  "		if h.server.Instance != server.Instance {\n",
				new:  "		if h.server.Instance != server.Instance && false {\n",
			},
			{
				file: "internal/member/etcd/lease.go",
				old:  "			if r.Instance != server.Instance {\n",
				new:  "			if r.Instance != server.Instance && false {\n",
			},
		},
		caught: []test{
			{"internal/member", "TestConformance/JoinTakesAnIndex", "index of another instance: error <nil>"},
			{"internal/member/etcd", "TestConformance/Suite/JoinTakesAnIndex", "index of another instance: error <nil>"},
		},
	},
}
