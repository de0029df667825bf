package planted

// serverBugs are bugs of the executor, of commits over several partitions, and
// of the memory of outcomes.
var serverBugs = []bug{
	{
		name: "RestartIsText", why: "a coordinator tells that a server was restarted as text alone, without the type of the error",
		edits: []edit{{
			file: "internal/exec/fault.go",
			old:  "	if f.Restarted {\n",
			new:  "	if false {\n",
		}},
		caught: []test{
			{"internal/exec", "TestRestartedCrosses", "is not"},
			{"server", "TestSurvivorNamesARestartedServer", "want"},
		},
	},
	{
		name: "UnknownIndexIsBad", why: "a data server that has not heard of an index yet takes a read of it for one that no client makes",
		edits: []edit{{
			file: "server/handler.go",
			old:  "	if int(rd.Index) >= len(has.indexes) {\n		return conflict(exec.CauseCatalog)\n	}\n	srv",
			new:  "	if int(rd.Index) >= len(has.indexes) {\n		return verdict{code: wire.Bad, text: \"no such index here\"}\n	}\n	srv",
		}},
		caught: []test{{"server", "TestServerFollowsLate", "did not wait for the server"}},
	},
	{
		name: "ProofsDoNotFit", why: "a data server answers a scan with proofs that do not fit a message, and so not at all",
		edits: []edit{{
			file: "server/handler.go",
			old:  "|| limit == 1 || !first {",
			new:  "|| limit >= 0 {",
		}},
		caught: []test{{"server", "TestScansFitMessages", "is answered"}},
	},
	{
		name: "OldReadersOfATwin", why: "a View reads in a twin that was taken away since its version of the catalogue",
		edits:  []edit{{file: "internal/exec/validate.go", old: "int(word>>NeedsShift&needsMask) > t.catalog.Version()", new: "false"}},
		caught: []test{{"server", "TestOldReadersOfATwin/local", "a View, read path .: .*, want that the table has no ranges"}},
	},
	{
		name: "OldWritersByATwin", why: "a commit rests on an empty range of a twin that was taken away",
		edits:  []edit{{file: "server/onestep.go", old: "int(part.Catalog) < c.ReadersNeed() && part.Proves()", new: "false"}},
		caught: []test{{"server", "TestOldReadersOfATwin/local", "an Update, read path .: .*, want that the table has no ranges"}},
	},
	{
		name: "LeavesBesidePrepared", why: "a twin is no longer maintained while a transaction that has read it is prepared",
		edits:  []edit{{file: "server/build.go", old: "b = &build{done: cat.drained(c)}", new: "b = &build{done: true}"}},
		caught: []test{{"server", "TestTwinLeavesBesideCommit/sync", "a transaction that has not seen a row commits after a View that saw the row without it"}},
	},
	{
		name: "ShippedAtHome", why: "a shipped transaction is committed at the time of its own partition, later than its twin has changed",
		edits: []edit{{
			file: "server/ship.go",
			old:  "		tick, ok := a.TickOf(sh.first)\n",
			new:  "		tick, ok := a.TickOf(sh.first)\n		tick = max(tick, p.ticks.own.Tick())\n",
		}},
		caught: []test{{"server", "TestShippedDeletionIsInSnapshots", "row 5, of which a View before has seen that it is gone"}},
	},
	{
		name: "TwinLeavesAtOnce", why: "a data server commits without the twin while another does not know that it is taken away",
		edits: []edit{{
			file: "tables/change.go",
			old:  "		own := next.alter(t, d, nil, &faults)\n		if !has.hidden {\n			own.building = append(own.building, own.twin)\n		}\n		own.twin.hidden, own.twin.leaving = true, true\n",
			new:  "		d.Twin = \"\"\n		own := next.alter(t, d, nil, &faults)\n		own.since = next.Version()\n",
		}},
		caught: []test{{"server", "TestTwinLeavesInTwoSteps/sync", "a range does not have it"}},
	},
	{
		name: "RefusalByAnEndedTwin", why: "an entry of a twin that another data server does not maintain any more refuses an insert",
		edits: []edit{{
			file: "server/calls.go",
			old:  "			part.Writes = slices.Clone(part.Writes)\n",
			new:  "			part.Writes = slices.Clone(part.Writes[:0])\n",
		}},
		caught: []test{{"server", "TestEntriesOfAnEndedTwin", "an insert of a row that was deleted"}},
	},
	{
		name: "DeletesOfABuild", why: "a delete expects the entry of a twin that the build has not made yet",
		edits:  []edit{{file: "internal/exec/twin.go", old: "if building && row.op == wire.Delete && !row.dropped {", new: "if false {"}},
		caught: []test{{"server", "TestTwinIsBuiltLate/local", "way"}},
	},
	{
		name: "ShipmentsAreTakenAgain", why: "a twin takes the keys of a message that comes again, late",
		edits:  []edit{{file: "server/ship.go", old: "		if number > has.upTo {\n", new: "		if true {\n"}},
		caught: []test{{"server", "TestShipmentsAreTakenOnce", "up to 1 is taken, want 2"}},
	},
	{
		name: "HintsOfEarlierRows", why: "an entry of a twin gets the place of a row that was deleted since, and inserted again",
		edits:  []edit{{file: "index/learned/tree/mutate.go", old: "	if block.Header(s.Load(t.lay.HeadsAt+slot)) != was {\n		return false\n	}\n	if !t.a", new: "	if !t.a"}},
		caught: []test{{"server", "TestLatePlacesAreNotTaken", "entries get places, want"}},
	},
	{
		name: "HintsWithoutChecksums", why: "the place of a row is written into a leaf with a checksum, which is wrong from then on",
		edits:  []edit{{file: "index/learned/tree/mutate.go", old: "	if !t.a.Checksums() {\n		s.Store", new: "	if true {\n		s.Store"}},
		caught: []test{{"index/learned", "TestSetHint/scrambled", "checksum|torn"}},
	},
	{
		name: "LoadedRowsShareHeaders", why: "rows of a load that do not ascend have one CSN, and one comes to the place of another that a split has moved",
		edits:  []edit{{file: "server/load.go", old: "before.Compare(w.Key) >= 0", new: "before.Compare(w.Key) == 0"}},
		caught: []test{{"server", "TestLoadedHeadersAreNotRepeated/falling", "has the header"}},
	},
	{
		name: "PagesOfProceduresMayChange", why: "what a procedure has read in an earlier page may be changed while its commit waits for a twin",
		edits:  []edit{{file: "internal/exec/commit.go", old: "t.where.only >= 0 && !ix.ClientWritten() && !t.catalog.ShipsTwins()", new: "t.where.only >= 0"}},
		caught: []test{{"server", "TestPagesOfShipmentsStay", "a procedure that has counted rows waits for a twin, and row 0 is deleted"}},
	},
	{
		name: "ShippedReadsMayChange", why: "what a procedure has read may be changed while its commit waits for a twin",
		edits:  []edit{{file: "internal/exec/commit.go", old: "	if which == clientWritten && !shipped {\n", new: "	if which == clientWritten {\n"}},
		caught: []test{{"server", "TestReadsOfShipmentsStay", "a procedure waits for a twin, and another transaction writes"}},
	},
	{
		name: "ShippedAtTheVote", why: "a transaction is committed at the tick at which it was prepared, although readers of the twin have not seen it later",
		edits: []edit{{
			file: "server/ship.go",
			old:  "			s.t.end(true, max(s.t.vote, tick))\n",
			new:  "			_ = tick\n			s.t.end(true, s.t.vote)\n",
		}},
		caught: []test{{"server", "TestTicksOfShipments", "the twin had no such key at"}},
	},
	{
		name: "ShipmentsWaitInARing", why: "two transactions wait for a twin, each for what the other one has read",
		edits:  []edit{{file: "server/ship.go", old: "	return p.id < from && v.cause", new: "	return false && p.id < from && v.cause"}},
		caught: []test{{"server", "TestShipmentsInARing", "deadline|want 3"}},
	},
	{
		name: "ShipmentsOutOfOrder", why: "a twin takes keys before those that were sent ahead of them",
		edits:  []edit{{file: "server/ship.go", old: "	if number > has.upTo+1 {\n", new: "	if false {\n"}},
		caught: []test{{"server", "TestShipmentsAreTakenOnce", "shipment 4 after 2"}},
	},
	{
		name: "TwinIsLate", why: "a transaction is committed before the twin in the next partition has its keys",
		edits: []edit{{
			file: "server/ship.go",
			old:  "	sh.queue = append(sh.queue, s)\n",
			new:  "	sh.queue = append(sh.queue, s)\n	s.t.end(true, s.t.vote)\n	sh.p.requests.over = append(sh.p.requests.over, &s.q)\n",
		}, {
			file: "server/ship.go",
			old:  "			s.t.end(true, max(s.t.vote, tick))\n",
			new:  "			_ = tick\n",
		}, {
			file: "server/ship.go",
			old:  "			s.t.end(false, 0)\n			s.q.result",
			new:  "			s.q.result",
		}, {
			file: "server/ship.go",
			old:  "		p.requests.over = append(p.requests.over, &s.q)\n		sh.first++\n",
			new:  "		sh.first++\n",
		}},
		caught: []test{{"server", "TestRefusedShipments", "want ErrOutOfMemory"}},
	},
	{
		name: "FailedInsertIsOK", why: "a client takes a transaction for committed for which there was no memory",
		edits:  []edit{{file: "internal/exec/onesided.go", old: "	case err == nil:\n		s.db.seen", new: "	case err == nil || errors.Is(err, engine.ErrNoLeaf):\n		s.db.seen"}},
		caught: []test{{"server", "TestWritersFillMemory", "are in 16 MiB"}},
	},
	{
		name: "ShipmentsAreRefusedAtLocks", why: "a twin refuses keys for good because a transaction in doubt has read their gap",
		edits: []edit{{
			file: "server/ship.go",
			old:  "			case v.code == wire.Conflict && v.cause != exec.CauseFence && !again:\n",
			new:  "			case v.code == wire.Conflict && v.cause == exec.CauseCatalog:\n",
		}},
		caught: []test{{"server", "TestShipmentsWaitForReadGaps", "the insert has ended"}},
	},
	{
		name: "RefusedShipmentsCommit", why: "a transaction commits although a twin has refused its keys",
		edits:  []edit{{file: "server/ship.go", old: "refused && !sh.gone {", new: "refused && sh.gone {"}},
		caught: []test{{"server", "TestRefusedShipments", "want ErrOutOfMemory"}},
	},
	{
		name: "PlacesAreNotTold", why: "a partition's own twin has no places of rows, or those that a client makes up",
		edits:  []edit{{file: "server/writes.go", old: "IsTwin() && !wr.places {", new: "IsTwin() && false {"}},
		caught: []test{{"txn", "TestRoundsOfTwins", "4 rounds, want 3"}},
	},
	{
		name: "LeafProofsUnchecked", why: "a data server commits without a look at the leaves of the engine Rolex that a transaction has read",
		edits: []edit{{
			file: "server/partition.go",
			old:  "		return l != nil && l.Holds(pr, o)\n",
			new:  "		return l != nil\n",
		}},
		caught: []test{{"server", "TestLeafProofsAreChecked", "an increment is lost"}},
	},
	{
		name: "NoLookAfterLocks", why: "a data server trusts its look at leaves that clients write, although it was before the locks",
		edits: []edit{{
			file: "server/leaves.go",
			old:  "	if !p.has.Load().apart {\n		return verdict{}\n	}\n	apart",
			new:  "	if true {\n		return verdict{}\n	}\n	apart",
		}},
		caught: []test{{"server", "TestServerLooksAgainAfterLocks", "a put: the body ran 1 times"}},
	},
	{
		name: "RefusalsRestOnNothing", why: "a write is refused although clients have changed what the transaction had read",
		edits: []edit{{
			file: "server/onestep.go",
			old:  "	case wire.Exists, wire.NotFound: //",
			new:  "	case wire.Bad: //",
		}},
		caught: []test{{"server", "TestServerLooksAgainAfterLocks", "refused: the body ran 1 times"}},
	},
	{
		name: "ProceduresTrustThePartition", why: "a procedure holds its partition, and so trusts leaves that clients write meanwhile",
		edits: []edit{{
			file: "internal/exec/commit.go",
			old:  "	if !t.noVersions {\n		return\n	}\n",
			new:  "	if true {\n		return\n	}\n",
		}},
		caught: []test{{"server", "TestProceduresBesideOneSidedWriters", "the sum is"}},
	},
	{
		name: "LoopbackIsBypassed", why: "a data server changes headers by the processor beside writers whose atomics are a device's",
		edits: []edit{{
			file: "server/device.go",
			old:  "	if !l.device.writes {\n",
			new:  "	if true {\n",
		}},
		caught: []test{{"server", "TestAtomicsOfADevice", "was counted up to|held|locked"}, {"server", "TestWritersOfOneKind", "those of the data server are others"}},
	},
	{
		name: "WritersOfTwoKinds", why: "an index has writers by a device and others at the same time",
		edits: []edit{{
			file: "server/device.go",
			old:  "	case apart != d.writes && os.hasWriters(h):\n",
			new:  "	case false:\n",
		}},
		caught: []test{{"server", "TestWritersOfOneKind", "refusal"}},
	},
	{
		name: "DeviceFailsBesideWriters", why: "the processor changes headers for a device that fails, and its writers are still there",
		edits: []edit{{
			file: "server/device.go",
			old:  "		os.s.ep.Revoke(p)\n",
			new:  "		_ = p\n",
		}},
		caught: []test{{"server", "TestDeviceThatFails", "were revoked when the device failed"}},
	},
	{
		name: "SwapIsTriedAgainUnseen", why: "an atomic of a device whose outcome is unknown is tried again without a look at the word",
		edits: []edit{{
			file: "server/device.go",
			old:  "		if now := header.Load(0); now != from {\n			return now == to, false\n		}\n",
			new:  "",
		}},
		caught: []test{{"server", "TestDeviceThatFails", "it has swapped nonetheless"}},
	},
	{
		name: "OutcomeOfWriterForgotten", why: "a data server that settles a writer does not remember that its last transaction has committed",
		edits: []edit{{
			file: "server/onesided.go",
			old:  "		if committed != 0 {\n",
			new:  "		if false {\n",
		}},
		caught: []test{{"server", "TestOutcomeOfOneSidedCommit", "the outcome"}},
	},
	{
		name: "QuestionsSettleNothing", why: "the outcome of a client's own commit is told while the client may still apply it",
		edits: []edit{{
			file: "server/handler.go",
			old:  "		if s.oneSided.has(id.Client, r.From) {\n",
			new:  "		if false {\n",
		}},
		caught: []test{{"server", "TestLateWritesOfAskedCommit", "has 99"}},
	},
	{
		name: "LongViewsNeedVersions", why: "a View whose first attempt took long goes on as a Snapshot, although it has read a table without versions",
		edits: []edit{{
			file: "internal/exec/escalation.go",
			old:  "		e.possible = false // it has read a table that no Snapshot can read\n		return\n",
			new:  "		e.possible = false // it has read a table that no Snapshot can read\n",
		}},
		caught: []test{{"server", "TestLongViewsWithoutVersionsGoOn", "keeps no versions"}},
	},
	{
		name: "ClientsNeverStandBack", why: "a request that meets the locks of clients again and again never gets its turn",
		edits: []edit{{
			file: "server/requests.go",
			old:  "		if e == byClient || e == locked && rs.p.nprepare == 0 && rs.p.has.Load().apart {",
			new:  "		if false {",
		}},
		caught: []test{{"server", "TestClientsStandBack", "no turn was reserved"}},
	},
	{
		name: "ClientLocksWaitForDecisions", why: "a commit that meets the lock of a client waits for the decision of a transaction that is prepared",
		edits: []edit{{
			file: "server/requests.go",
			old:  "	case v.byClient:\n		return byClient\n",
			new:  "",
		}},
		caught: []test{{"server", "TestClientsStandBackBesidePrepared", "no turn was reserved"}},
	},
	{
		name: "SettledWritersEndRequests", why: "a writer that is settled ends the transaction that runs under its name, and its fate is forgotten",
		edits: []edit{{
			file: "server/outcomes.go",
			old:  "	if f != nil && !f.done {\n		return\n	}\n",
			new:  "",
		}},
		caught: []test{{"server", "TestWriterNamesOfSessions", "nil pointer"}},
	},
	{
		name: "OneSidedBehindTheClock", why: "a client commits in a partition whose clock is behind what the client has seen",
		edits: []edit{{
			file: "internal/exec/onesided.go",
			old:  "	case clock.Tick(ws.words[tickWord]) < ws.seen:\n",
			new:  "	case false:\n",
		}},
		caught: []test{{"server", "TestOneSidedCommitsFollowWhatWasSeen", "was behind"}},
	},
	{
		name: "OneSidedWithoutProofs", why: "a client commits without a look at what it has read beside the leaves that it changes",
		edits: []edit{{
			file: "internal/exec/onesided.go",
			old:  "range [][]index.Proof{p.Rows, p.Gaps} {",
			new:  "range [][]index.Proof{} {",
		}},
		caught: []test{{"server", "TestOneSidedCommitsRestOnReads", "the body ran 1 times"}},
	},
	{
		name: "PreparedReadsAreShared", why: "a prepared transaction shares the leaves of the engine Rolex that it has read in the data server's table alone",
		edits: []edit{{
			file: "server/writes.go",
			old:  "	if l := wr.p.inLeaves(pr.Addr); l != nil && !l.Share(pr, o) {\n",
			new:  "	if l := wr.p.inLeaves(pr.Addr); l != nil && !l.Holds(pr, 0) {\n",
		}},
		caught: []test{{"server", "TestPreparedReadsHoldLeaves", "can be written while"}},
	},
	{
		name: "LeafProofsInThePartition", why: "a View READs the proofs of leaves in the region of the partition",
		edits: []edit{{
			file: "internal/exec/validate.go",
			old:  "if number, _ := index.RegionOf(addr); number != 0 {\n",
			new:  "if number, at := index.RegionOf(addr); number != 0 {\n				addr = at\n			}\n			if number, _ := index.RegionOf(addr); number != 0 {\n",
		}},
		caught: []test{{"server", "TestLeavesAreReadOneSided", "aborted|gave up|conflict|READs"}},
	},
	{
		name: "ViewsSeekVersions", why: "a View that has read a table without versions goes on as a Snapshot all the same",
		edits: []edit{{
			file: "internal/exec/escalation.go",
			old:  "	if t.noVersions {\n",
			new:  "	if false {\n",
		}},
		caught: []test{{"server", "TestViewsWithoutVersionsGoOn", "Snapshots, want 101 and none"}},
	},
	{
		name: "UnlockEarly", why: "a commit locks, writes and unlocks each row before it locks the next",
		edits: []edit{
			{
				file: "server/onestep.go",
				old:  "	held, v := p.writer.lockAll(p.writer.owners, part.Writes, p.writer.held[:0])\n	p.writer.held = held[:0]\n",
				new:  "	if part != nil {\n		return p.commitRowByRow(part)\n	}\n	held, v := p.writer.lockAll(p.writer.owners, part.Writes, p.writer.held[:0])\n	p.writer.held = held[:0]\n",
			},
			{
				file: "server/partition.go",
				old:  "// keepVersions switches the history on.",
				new: `// commitRowByRow pauses between rows, for a reader seldom comes in between.
func (p *partition) commitRowByRow(part *wire.Part) verdict {
	held, v := p.writer.lockAll(p.writer.owners, part.Writes, nil)
	for i, h := range held {
		p.index(int(part.Writes[i].Index)).Release(h)
	}
	if !v.ok() {
		return v
	}
	for i := range part.Writes {
		held, v := p.writer.lockAll(p.writer.owners, part.Writes[i:i+1], p.writer.held[:0])
		if !v.ok() {
			return v
		}
		p.writer.applyAll(part.Writes[i:i+1], held, p.ticks.nextCSN())
		time.Sleep(50 * time.Microsecond)
	}
	p.commits++
	return verdict{}
}

// keepVersions switches the history on.`,
			},
		},
		caught: []test{{"server", randomHistory, anomaly}},
	},
	{
		name: "KeepLocks", why: "a lock that fails leaves the locks taken before it",
		edits: []edit{{
			file: "server/writes.go",
			old:  "			wr.releaseAll(writes, held)\n			return held[:0], v",
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
			{"server", "TestBrokenLinksAreRenewed", "broken connections were used|not at attempt"},
			{"server", "TestLinksToARestartedServer", "broken connections were used|not at attempt"},
		},
	},
	{
		name: "ParticipantsOneByOne", why: "a commit waits for one participant after the other, for each as long as for all",
		edits: []edit{{
			file: "server/calls.go",
			old:  "			c.v, c.err = c.l.finish(t.ctx)\n",
			new:  "			ctx, cancel := context.WithTimeout(t.driver.workers.ctx, peerTimeout+deadlineShared)\n			c.v, c.err = c.l.finish(ctx)\n			cancel()\n",
		}},
		caught: []test{{"server", "TestPausedParticipantsShareADeadline", "2 participants are paused: .* after 4.1s, want 2.1s"}},
	},
	{
		name: "AskedOneByOne", why: "a participant is asked for its vote when the one before it has answered",
		edits: []edit{{
			file: "server/calls.go",
			old:  "		t.calls = append(t.calls, call{l: l, ms: ms, err: l.conn.StartCall(t.ctx, t.request(to, ms))})\n",
			new:  "		t.finish()\n		t.ctx, _ = context.WithTimeout(t.driver.workers.ctx, peerTimeout+deadlineShared)\n		t.calls = append(t.calls, call{l: l, ms: ms, err: l.conn.StartCall(t.ctx, t.request(to, ms))})\n",
		}},
		caught: []test{{"server", "TestPausedParticipantsShareADeadline", "2 participants are paused: .* after 4.1s, want 2.1s"}},
	},
	{
		name: "PeersOneByOne", why: "what settles transactions in doubt asks one server after the other",
		edits: []edit{{
			file: "server/driver.go",
			old:  "	for len(ms) > 0 {\n		to, ok := dr.parts.placement.Primary(ms[0].To.Partition)\n",
			new: `	all := append([]twophase.Message(nil), ms...)
	ms = nil
	dr.workers.background(func() {
		for _, p := range dr.peers {
			var mine []twophase.Message
			for _, m := range all {
				if p.server != dr.parts.self && dr.parts.isAt(m.To, p.server) {
					mine = append(mine, m)
				}
			}
			if len(mine) > 0 && p.exchange(mine) != nil {
				p.look(mine)
			}
		}
	})
	for len(ms) > 0 {
		to, ok := dr.parts.placement.Primary(ms[0].To.Partition)
`,
		}},
		caught: []test{{"server", "TestSilentServersHoldUpNobodyElse", "settled after .*, with no silent server after"}},
	},
	{
		name: "TicksWaitForPeers", why: "a tick of the commit protocol waits for the answers of other servers",
		edits: []edit{{
			file: "server/peers.go",
			old:  "		p.s.workers.background(p.send)\n",
			new:  "		p.mu.Unlock()\n		p.send()\n		p.mu.Lock()\n",
		}},
		caught: []test{{"server", "TestSilentServersHoldUpNobodyElse", "settled after .*, with no silent server after"}},
	},
	{
		name: "ForgottenIsUnknown", why: "a session whose outcome was forgotten is told that the server has never seen its transaction",
		edits: []edit{{
			file: "server/outcomes.go",
			old:  "		if !o.forgotten.excludes(sent, o.sent(), r.From) {\n",
			new:  "		if !o.forgotten.excludes(sent, o.sent(), r.From) && false {\n",
		}},
		caught: []test{{"server", "TestForgottenOutcomesAreNotDenied", "a forgotten commit is answered"}, {"server", "TestOutcomesAtRandom", "that has committed is answered"}},
	},
	{
		name: "IdleLoopsWork", why: "the loops of an idle server look for work as often as those of a busy one",
		edits: []edit{{
			file: "server/pace.go",
			old:  "	if !soon && p.idle() {\n",
			new:  "	if !soon && p.idle() && d < 0 {\n",
		}},
		caught: []test{{"server", "TestIdleServerRests", "looked for work"}},
	},
	{
		name: "CopiesWakeTheirKeeper", why: "the steps of a copy keep the loops of the server that has it awake",
		edits: []edit{{
			file: "server/handler.go",
			old:  "	if len(r.Body) == 0 || wire.Op(r.Body[0]) != wire.OpCopy {",
			new:  "	if len(r.Body) >= 0 {",
		}},
		caught: []test{{"server", "TestIdleServerRests/copies", "looked for work|does not come to rest"}},
	},
	{
		name: "RequestsWakeNobody", why: "the loops of an idle server sleep on when a request has come",
		edits: []edit{{
			file: "server/pace.go",
			old:  "			close(p.wake)\n",
			new:  "",
		}},
		caught: []test{{"server", "TestRest", "does not wake the loop"}},
	},
	{
		name: "RefusalForgotten", why: "a commit that comes after its refusal, or its execution, was forgotten is executed",
		edits: []edit{{
			file: "server/forgotten.go",
			old:  "	case sent.At > now.At || now.At-sent.At > index.MaxCommitAge || !g.excludes(sent, now, who):\n",
			new:  "	case sent.At > now.At || now.At-sent.At > index.MaxCommitAge:\n",
		}},
		caught: []test{{"server", "TestForgottenOutcomesAreNotDenied", "a late commit of session"}, {"server", "TestOutcomesAtRandom", "a transaction runs"}},
	},
	{
		name: "FormerLivesAlone", why: "a session that a restarted server has refused is forgotten as one of a former life, and the late request is executed",
		edits: []edit{{
			file: "server/forgotten.go",
			old:  "	if f.restored { // no request of it has come in this life\n",
			new:  "	if f.former {\n",
		}},
		caught: []test{{"server", "TestOutcomesAtRandom", "a transaction runs|has committed is answered"}},
	},
	{
		name: "NoRequestTooOld", why: "a copy of a closed session's commit is executed when the session is forgotten",
		edits: []edit{{
			file: "server/forgotten.go",
			old:  "	case sent.At > now.At || now.At-sent.At > index.MaxCommitAge || !g.excludes(sent, now, who):\n",
			new:  "	case sent.At > now.At || !g.excludes(sent, now, who):\n",
		}},
		caught: []test{{"server", "TestOutcomesAtRandom", "a transaction runs"}},
	},
	{
		name: "SentInAnotherLife", why: "a request that was sent to a former life of the server is executed",
		edits: []edit{{
			file: "server/forgotten.go",
			old:  "	case sent.Incarnation != now.Incarnation || sent.Epoch != now.Epoch:\n		return false, exec.CauseFence\n",
			new:  "",
		}},
		caught: []test{{"server", "TestRequestsOfAFormerLife", "is executed"}},
	},
	{
		name: "NothingIsCertainAnyMore", why: "once an outcome was forgotten, new sessions of its identity are in doubt for good",
		edits: []edit{{
			file: "server/forgotten.go",
			old:  "		g.of[who] = max(g.of[who], f.last+1)\n",
			new:  "		g.of[who] = 1 << 62\n",
		}},
		caught: []test{{"server", "TestForgottenOutcomesAreNotDenied", "a commit sent since is answered"}},
	},
	{
		name: "QuarantineEndsWhileStopped", why: "memory leaves its quarantine while the server is stopped, with commits in its queue",
		edits: []edit{{
			file: "server/partition.go",
			old:  "Clock: p.clock.Now,",
			new:  "Clock: cfg.clock,",
		}},
		caught: []test{{"server", "TestCommitsInTheQueueOfAStoppedServer", "since deleted, is answered 0"}},
	},
	{
		name: "TimerTicks", why: "a commit gets the tick that the server's timer saw last",
		edits: []edit{{
			file: "server/ticks.go",
			old:  "	ts.advance()\n	csn := ts.arena",
			new:  "	csn := ts.arena",
		}},
		caught: []test{{"server", "TestCommitsReadTheClock", "a commit that began in tick"}},
	},
	{
		name: "BrokenSendIsNoAbort", why: "a request on a connection that breaks counts as never sent if the deadline has passed",
		edits: []edit{{
			file: "internal/exec/link.go",
			old:  "	return false, n.broken(ctx, l, err)\n",
			new:  "	return ctx.Err() != nil, n.broken(ctx, l, err)\n",
		}},
		caught: []test{{"server", "TestBrokenSendIsNoAbort", "and the caller hears: context deadline exceeded"}},
	},
	{
		name: "NoSharedLocks", why: "what a prepared transaction has read can be written before the decision",
		edits: []edit{{
			file: "server/writes.go",
			old:  "	wr.shared.add(pr.Addr, o)\n	return true\n",
			new:  "	return true\n",
		}},
		caught: []test{{"server", "TestPreparedReadsStay", "read by a prepared transaction, was written"}},
	},
	{
		name: "ReleaseLooksAtAllLocks", why: "the release of one owner's shared locks looks for them among all",
		edits: []edit{{
			file: "server/locks.go",
			old:  "	for _, addr := range l.words[o] {\n		os := l.owners[addr]\n		at := slices.Index(os, o)\n",
			new:  "	for addr, os := range l.owners {\n		at := slices.Index(os, o)\n",
		}},
		caught: []test{{"server", "TestReleaseCostsNoMoreThanItsLocks", "looked at words that are not in the owner's list"}},
	},
	{
		name: "ReleaseLooksAtAllOwners", why: "the release of shared locks looks for their owner among all",
		edits: []edit{{
			file: "server/locks.go",
			old:  "	for _, addr := range l.words[o] {\n		os := l.owners[addr]\n",
			new:  "	var words []uint64\n	for owner, ws := range l.words {\n		if owner == o {\n			words = ws\n		}\n	}\n	for _, addr := range words {\n		os := l.owners[addr]\n",
		}},
		caught: []test{{"server", "TestReleaseCostsNoMoreThanItsLocks", "releases of one lock in 20s"}},
	},
	{
		name: "SharedLocksLast", why: "shared locks are taken where the proofs were before the transaction's own inserts moved them",
		edits: []edit{
			{
				file: "server/prepared.go",
				old:  "	if v := p.writer.lockReads(part, t.owner); !v.ok() {\n		return t, v\n	}\n	held, v",
				new:  "	held, v",
			},
			{
				file: "server/prepared.go",
				old:  "	t.held = held\n",
				new:  "	p.writer.lockReads(part, t.owner)\n	t.held = held\n",
			},
		},
		caught: []test{{"server", "TestPreparedReadsStay", "read by a prepared transaction, was written"}},
	},
	{
		name: "RepeatVersions", why: "the versions of rows start again after a few",
		edits: []edit{{
			file: "server/writes.go",
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
			new:  "	l, err := p.link(ctx)\n	if err != nil {\n		b := &batch{driver: &p.s.driver}\n		for _, m := range ms {\n			b.gone(m.To)\n		}\n		b.settle()\n		return err\n	}\n	if slices",
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
			old:  "		case e == locked && k.rs.lines.stays(q):\n",
			new:  "		case q != nil:\n",
		}},
		caught: []test{{"server", "TestParkedIsWoken", "was not woken by the decision"}},
	},
	{
		name: "RunParkedTwice", why: "a request that has waited is carried out once more before it is answered",
		edits: []edit{{
			file: "server/parking.go",
			old:  "		case k.rs.place(q, e, nil):\n",
			new:  "		case k.rs.place(q, e, nil):\n			k.rs.attempt(q)\n",
		}},
		caught: []test{
			{"server", "TestParkedIsWoken", "carried out twice"},
			{"server", randomHistory, anomaly},
		},
	},
	{
		name: "LongProceduresStay", why: "a procedure that is known to be long runs in the poller of its connection",
		edits: []edit{{
			file: "server/handler.go",
			old:  "	if s.slow.known.Load() > 0 && s.leavesPoller(r) {\n",
			new:  "	if s.slow.known.Load() > 1<<20 && s.leavesPoller(r) {\n",
		}},
		caught: []test{{"server", "TestLongProcedureHoldsUpNoOthers", "is held up by a long procedure"}},
	},
	{
		name: "CloseIsAFailureAtHome", why: "a procedure of one partition that ends because its server closes counts as failed by itself",
		edits: []edit{{
			file: "server/requests.go",
			old:  "			q.result = failed(ctx, err).append(q.result[:0])\n",
			new:  "			q.result = verdictOf(err).append(q.result[:0])\n",
		}},
		caught: []test{{"server", "TestCloseIsNoFailureOfAProcedure", "returns the error of its context: code 4"}},
	},
	{
		name: "CloseHiddenInText", why: "a procedure that ends because its server closes counts as failed by itself if it wraps the error as text",
		edits: []edit{{
			file: "server/procedure.go",
			old:  "	if v.code != wire.RolledBack || exec.IsForCaller(err) {\n",
			new:  "	if v.code != wire.RolledBack || !errors.Is(err, context.Canceled) {\n",
		}},
		caught: []test{
			{"server", "TestCloseIsNoFailureOfAProcedure", "wraps the error of its context as text: code 4"},
			{"server", "TestAnswerForAnError", "no reason when the server stops: code 4"},
		},
	},
	{
		name: "ClosedClientIsAFailure", why: "a procedure whose server has closed its own client counts as failed by itself",
		edits: []edit{{
			file: "server/procedure.go",
			old:  "	case errors.Is(err, exec.ErrClosed): // of the server's own client, which ends with the server\n		return stops\n",
			new:  "",
		}},
		caught: []test{
			{"server", "TestStopIsNoFailureOfTheProcedure", "without its client: "},
			{"server", "TestAnswerForAnError", "txn: closed: code 4"},
		},
	},
	{
		name: "CloseWaitsForNoAnswer", why: "a server that closes cuts its callers off before they hear how their procedures have ended",
		edits: []edit{{
			file: "server/server.go",
			old:  "		s.elsewhere.await()\n",
			new:  "",
		}},
		caught: []test{{"server", "TestCallersHearOfTheClose", "calls were cut off"}},
	},
	{
		name: "CallsOutliveTheirCallers", why: "a procedure that waits for another server does not end when its caller gives up",
		edits: []edit{{
			file: "server/procedure.go",
			old:  "	ctx = call\n",
			new:  "",
		}},
		caught: []test{
			{"server", "TestProceduresEndWithTheirCallers", "as many procedures run as there must be"},
			{"server", "TestReadsElsewhereEndWithTheirCaller/inproc", "no answer"},
		},
	},
	{
		name: "PatientCallsHaveNoEnd", why: "a procedure whose caller has no deadline waits for another server for ever",
		edits: []edit{{
			file: "server/procedure.go",
			old:  "		call.ends, call.late, call.own = clock.Fast()+e.time, tooLong, true\n",
			new:  "		call.ends, call.late, call.own = clock.Fast()+time.Hour, tooLong, true\n",
		}},
		caught: []test{{"server", "TestProceduresOfPatientCallersEnd", "no answer"}},
	},
	{
		name: "CallsElsewhereUnbounded", why: "a server runs as many procedures outside their partitions as it is asked to",
		edits: []edit{{
			file: "server/procedure.go",
			old:  "	if e.running-e.committing >= e.max {\n",
			new:  "	if e.running-e.committing >= e.max && e.max == 0 {\n",
		}},
		caught: []test{{"server", "TestCallsElsewhereAreBounded", "no answer"}},
	},
	{
		name: "CommitsCountElsewhere", why: "procedures whose decision another server has keep others out that need other servers",
		edits: []edit{{
			file: "server/coordinate.go",
			old:  "		c.of.commits(1)\n		defer c.of.commits(-1)\n",
			new:  "		c.of.commits(0)\n",
		}},
		caught: []test{{"server", "TestCallsElsewhereAreBounded", "a commit begins|code 9"}},
	},
	{
		name: "FullTableRefuses", why: "a commit is refused when it is ahead of the acknowledgements of others",
		edits: []edit{{
			file: "server/coordinate.go",
			old:  "	if !errors.Is(err, twophase.ErrBusy) {\n		return err\n	}\n",
			new:  "	if err != nil || ctx == nil {\n		return err\n	}\n",
		}},
		caught: []test{{"server", "TestFullTableWaits", "too many transactions are not settled"}},
	},
	{
		name: "FullTableWaitsForEver", why: "a commit with a silent server waits for room in a table for as long as the server is silent",
		edits: []edit{{
			file: "server/coordinate.go",
			old:  "	ctx, cancel := context.WithTimeout(ctx, peerTimeout)\n	defer cancel()\n	for pause :=",
			new:  "	for pause :=",
		}},
		caught: []test{{"server", "TestFullTableWaitsNotForEver", "before the deadline"}},
	},
	{
		name: "CommitsAfterTheDeadline", why: "a procedure commits although its caller gave up while the commit waited for an executor",
		edits: []edit{{
			file: "server/share.go",
			old:  "	if v := sh.ended(); !v.ok() {\n		return v\n	}\n	return sh.fresh()\n",
			new:  "	return sh.fresh()\n",
		}},
		caught: []test{
			{"server", "TestNothingCommitsAfterTheDeadline/for an executor, at one server", "code 0, want one of .17."},
			{"server", "TestNothingCommitsAfterTheDeadline/for an executor, at two servers", "code 0, want one of .17."},
		},
	},
	{
		name: "CommitsAfterTheDeadlineAtHome", why: "a procedure of one partition commits although its caller gave up while it ran",
		edits: []edit{{
			file: "server/requests.go",
			old:  "		if q.late() {\n			v = tooLate\n		} else if",
			new:  "		if",
		}},
		caught: []test{{"server", "TestNothingCommitsAfterTheDeadline/in the body, at home", "code 0, want one of .17."}},
	},
	{
		name: "LateVotesCount", why: "votes that come after the caller of a procedure has given up commit it",
		edits: []edit{{
			file: "server/calls.go",
			old:  "	} else if w := t.share.ended(); c.ms[0].Kind == twophase.Prepare && !w.ok() {\n",
			new:  "	} else if w := t.share.ended(); c.ms[0].Kind == twophase.Prepare && !w.ok() && t.driver == nil {\n",
		}, {
			file: "server/calls.go",
			old:  "				t.ctx = c // a vote that comes later does not count\n",
			new:  "",
		}},
		caught: []test{{"server", "TestNothingCommitsAfterTheDeadline/for a vote", "code 0, want one of .17."}},
	},
	{
		name: "LateVotesAreAwaited", why: "a server waits for votes of a procedure whose caller has given up",
		edits: []edit{{
			file: "server/calls.go",
			old:  "				t.ctx = c // a vote that comes later does not count\n",
			new:  "",
		}},
		caught: []test{{"server", "TestLateVotesAreNotAwaited", "was waited for"}},
	},
	{
		name: "LateRequestsRun", why: "a procedure whose caller gave up while it waited runs nevertheless",
		edits: []edit{{
			file: "server/requests.go",
			old:  "		if q.late() {\n			rs.refuse(q, tooLate)\n			return over\n		}\n",
			new:  "",
		}},
		caught: []test{{"server", "TestLateRequestsDoNotRun", "the body has run"}},
	},
	{
		name: "DialsEndWithTheirCallers", why: "a server never connects to another one if all callers have less time than that takes",
		edits: []edit{{
			file: "server/reach.go",
			old:  "			p.dialAhead()\n",
			new:  "",
		}},
		caught: []test{{"server", "TestShortDeadlinesAtAHome", "code 17"}},
	},
	{
		name: "CallsWithoutATimeLimit", why: "a client does not tell the home of a procedure how much time its caller gives it",
		edits: []edit{{
			file: "internal/exec/call.go",
			old:  "	return max(left-min(left/8, answerTime), time.Microsecond)\n",
			new:  "	return 0 * left\n",
		}},
		caught: []test{{"server", "TestProceduresEndWithTheirCallers", "as many procedures run as there must be"}},
	},
	{
		name: "LastComeFirstServed", why: "the newest claim of a line has the next turn",
		edits: []edit{{
			file: "server/lines.go",
			old:  "	row.claims = slices.Insert(row.claims, at, c)\n",
			new:  "	row.claims = slices.Insert(row.claims, min(at, 1), c)\n",
		}},
		caught: []test{{"server", "TestLineIsServedInOrder", "after the first turn, the second has"}},
	},
	{
		name: "ReservationsWithoutEnd", why: "the reservation of a client that does not come never ends",
		edits: []edit{{
			file: "server/lines.go",
			old:  "		if i >= len(l.all) || l.all[i].ends > now {\n",
			new:  "		if i >= len(l.all) || l.all[i].ends > now || l.all[i].q == nil {\n",
		}},
		caught: []test{{"server", "TestReservationEnds", "is never answered"}},
	},
	{
		name: "LinesAreIgnored", why: "a commit overtakes those that wait for the row",
		edits: []edit{{
			file: "server/lines.go",
			old:  "		if row := l.rows[name]; len(row.claims) > 0 && row.claims[0].before(mine) {\n",
			new:  "		if row := l.rows[name]; len(row.claims) > 1<<20 && row.claims[0].before(mine) {\n",
		}},
		caught: []test{{"server", "TestLineIsServedInOrder", "that must wait are answered"}},
	},
	{
		name: "WaitsAtEveryRow", why: "a request that waits for one row stands in the lines of all that it would write",
		edits: []edit{{
			file: "server/lines.go",
			old:  "			rs.waitsFor = append(rs.waitsFor, name)\n",
			new:  "			for i := range writes {\n				rs.waitsFor = append(rs.waitsFor, nameOf(&writes[i]))\n			}\n",
		}},
		caught: []test{{"server", "TestWaitsHoldUpNoOtherRow", "is held up by one that waits for another row"}},
	},
	{
		name: "AllAreParked", why: "each request that meets the lock of a row waits for the decision itself",
		edits: []edit{{
			file: "server/requests.go",
			old:  "	if e == locked && (len(rs.waitsFor) == 0 ||",
			new:  "	if e == locked && (len(rs.waitsFor) < 1<<20 ||",
		}},
		caught: []test{{"server", "TestLockedRowHasALine", "requests are parked for one row"}},
	},
	{
		name: "StaysAtTheFirstLock", why: "a parked request that meets the lock of another row stays in its line",
		edits: []edit{{
			file: "server/parking.go",
			old:  "		case e == locked && k.rs.lines.stays(q):\n",
			new:  "		case e == locked && (q != nil || k.rs.lines.stays(q)):\n",
		}},
		caught: []test{{"server", "TestWaitsMoveToTheNextLock", "the last one writes no locked row"}},
	},
	{
		name: "MovesToTheEnd", why: "a request that moves to another line loses the place of its arrival",
		edits: []edit{{
			file: "server/requests.go",
			old:  "ends: rs.parking.ends(q), seq: q.seq}\n",
			new:  "ends: rs.parking.ends(q)}\n",
		}},
		caught: []test{{"server", "TestWaitsMoveToTheNextLock", "answered in the order"}},
	},
	{
		name: "MovesForEver", why: "a request moves from one locked row to the next for as long as there are any",
		edits: []edit{{
			file: "server/requests.go",
			old:  "	if q.moves++; q.moves > movesMax {\n",
			new:  "	if q.moves++; q.moves > 1<<20 {\n",
		}},
		caught: []test{{"server", "TestMovesEnd", "the request has not run"}},
	},
	{
		name: "TurnsWaitForOthers", why: "a claim that has its turn waits for those behind it",
		edits: []edit{{
			file: "server/lines.go",
			old:  "(other == nil || c.granted || c.seq < other.seq)\n",
			new:  "(other == nil || c.granted || c.seq > 0)\n",
		}},
		caught: []test{{"server", "TestWholePartition", "under a reservation|with the partition reserved"}},
	},
	{
		name: "PreparesStandInLine", why: "a participant refuses a share because of a claim that waits for another row",
		edits: []edit{{
			file: "server/lines.go",
			old:  "		if len(row.claims) > 0 && row.claims[0].granted && row.claims[0] != mine {\n",
			new:  "		if len(row.claims) > 0 && row.claims[0] != mine {\n",
		}},
		caught: []test{{"server", "TestPreparesWaitForNoLine", "because of one that waits for another row"}},
	},
	{
		name: "PreparesTakeReserved", why: "a participant locks a row that is reserved for another session",
		edits: []edit{{
			file: "server/lines.go",
			old:  "		if len(row.claims) > 0 && row.claims[0].granted && row.claims[0] != mine {\n",
			new:  "		if len(row.claims) > 1<<20 && row.claims[0].granted && row.claims[0] != mine {\n",
		}},
		caught: []test{{"server", "TestPreparesWaitForNoLine", "a reserved row is locked"}},
	},
	{
		name: "TurnEndsAtLock", why: "an Update that meets an old lock gives up its reservation, and asks for another one",
		edits: []edit{{
			file: "internal/exec/turn.go",
			old:  "	if t.cause != CauseLocked || t.sent ||",
			new:  "	if t.cause == CauseLocked || t.sent ||",
		}},
		caught: []test{{"server", "TestTurnOutlastsOlderLocks", "reservations for one Update"}},
	},
	{
		name: "TurnIsNoWait", why: "a turn that comes at once lets an Update try a row again without pause that an older transaction has locked",
		edits: []edit{{
			file: "internal/exec/attempts.go",
			old:  "			if !hadTurn || t.cause != CauseLocked {",
			new:  "			if hadTurn || t.cause == CauseLocked {",
		}},
		caught: []test{{"server", "TestTurnWaitsForOlderLocks", "attempts within"}},
	},
	{
		name: "ForgetOutcomes", why: "a repeated request is carried out again",
		edits: []edit{{
			file: "server/outcomes.go",
			old:  "	case id.Seq > f.seq && (f.done || f.seq == 0 || f.left):\n",
			new:  "	case id.Seq > 0:\n",
		}},
		caught: []test{
			{"server", "TestRepeatedRequestsTakeEffectOnce", "(?i)duplicate"},
			{"tpcc", "TestConservation/all at once", `in history \[.*\} \{`},
		},
	},
}
