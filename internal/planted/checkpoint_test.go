package planted

import "slices"

// checkpointBugs are bugs of checkpoints and of what they are made from.
var checkpointBugs = []bug{
	{
		name: "VisitMissesLastSplits", why: "a visit of a hash index ends before the buckets that were split off last",
		edits: []edit{{
			file: "index/hash/visit.go",
			old:  "	for ; words > 0 && at.Bucket < s.buckets.Load(); at.Bucket++ {\n",
			new:  "	for ; words > 0 && at.Bucket < s.buckets.Load()&^15; at.Bucket++ {\n",
		}, {
			file: "index/hash/visit.go",
			old:  "	return at.Bucket < s.buckets.Load()\n",
			new:  "	return at.Bucket < s.buckets.Load()&^15\n",
		}},
		caught: []test{{"index/hash", "TestConformance/no location cache/in-order/visit", `were not visited|rows, \d+ missing`}},
	},
	{
		name: "VisitLeavesOutLocked", why: "a visit leaves out rows that are locked",
		edits: []edit{{
			file: "index/learned/tree/visit.go",
			old:  "		if e.Header.IsAbsent() ||",
			new:  "		if e.Header.Locked() || e.Header.IsAbsent() ||",
		}},
		caught: []test{{"index/learned", "TestConformance/inline=true/budget=0/in-order/visit", "were not visited"}},
	},
	{
		name: "VisitMissesFences", why: "a visit of an ordered index misses the row with the key at which a turn begins",
		edits: []edit{{
			file: "index/learned/tree/visit.go",
			old:  "e.Key.Compare(from) < 0 {\n",
			new:  "e.Key.Compare(from) <= 0 {\n",
		}},
		caught: []test{{"index/learned", "TestConformance/inline=true/budget=0/in-order/visit", "were not visited"}},
	},
	{
		name: "ImageDirectoryNotSynced", why: "a checkpoint is complete when it is renamed, before its directory is synced",
		edits: []edit{{
			file: "internal/image/write.go",
			old:  "	return w.off, w.rows, syncDir(w.fs, w.dir)\n",
			new:  "	return w.off, w.rows, nil\n",
		}, {
			file: "internal/image/write.go",
			old:  "func syncDir(",
			new:  "var _ = syncDir\n\nfunc syncDir(",
		}},
		caught: []test{{"internal/image", "TestCrashes", "a checkpoint that was finished is gone"}},
	},
	{
		name: "ImageNotSynced", why: "a checkpoint gets its name before its contents are synced",
		edits: []edit{{
			file: "internal/image/write.go",
			old:  "	if err := w.f.Sync(); err != nil {\n",
			new:  "	if err := error(nil); err != nil {\n",
		}},
		caught: []test{{"internal/image", "TestCrashes", "is damaged at offset"}},
	},
	{
		name: "BlockOfAnotherImage", why: "the checksum of a block does not tell of which checkpoint it is",
		edits: []edit{{
			file: "internal/image/read.go",
			old:  "le.Uint32(buf) != crc32.Update(f.seed, castagnoli, buf[crcBytes:])",
			new:  "le.Uint32(buf) != crc32.Checksum(buf[crcBytes:], castagnoli)",
		}, {
			file: "internal/image/read.go",
			old:  "le.Uint32(t[24:]) != f.seed ||",
			new:  "",
		}, {
			file: "internal/image/write.go",
			old:  "crc32.Update(w.seed, castagnoli, w.buf[crcBytes:])",
			new:  "crc32.Checksum(w.buf[crcBytes:], castagnoli)",
		}},
		caught: []test{{"internal/image", "TestBlocksOfAnotherFile", "blocks of two checkpoints were read"}},
	},
	{
		name: "RestoreOlderHash", why: "an older row takes the place of a newer one of a checkpoint in a hash index",
		edits: []edit{{
			file: "index/hash/restore.go",
			old:  "	case now.CSN() >= h.CSN():\n",
			new:  "	case now.CSN() == h.CSN():\n",
		}},
		caught: []test{{"index/hash", "TestConformance/no location cache/in-order/visit", "after restoring|check after|is published as"}},
	},
	{
		name: "RestoreOlderOrdered", why: "an older row takes the place of a newer one of a checkpoint in an ordered index",
		edits: []edit{{
			file: "index/learned/tree/restore.go",
			old:  "	case now.CSN() >= head.CSN():\n",
			new:  "	case now.CSN() == head.CSN():\n",
		}},
		caught: []test{{"index/learned", "TestConformance/inline=true/budget=0/in-order/visit", "after restoring"}},
	},
	{
		name: "RisingForever", why: "a tree that is being restored takes a leaf for the last one although it has been split",
		edits: []edit{{
			file: "index/learned/tree/mutate.go",
			old:  "	t.rising.leaf = 0 // unless restoreNew knows better\n",
			new:  "",
		}},
		caught: []test{{"index/learned", "TestConformance/inline=true/budget=0/in-order/visit", "restor|range"}},
	},
	{
		name: "CheckpointAheadOfLog", why: "a checkpoint is complete before the log is durable up to the end of the visit",
		edits: []edit{{
			file: "server/checkpoint.go",
			old:  "		err = d.log.Wait(ctx, d.log.End())\n",
			new:  "		err = d.log.Wait(ctx, 0)\n",
		}},
		caught: []test{{"server", "TestCheckpointWaitsForTheLog", "is complete before the log"}},
	},
	{
		name: "CheckpointOfAFailedLog", why: "a checkpoint is made although the log has failed, and does not have the outcomes of commits that sessions are in doubt about",
		edits: []edit{{
			file: "server/checkpoint.go",
			old:  "		err = d.log.Err()\n",
			new:  "",
		}},
		caught: []test{{"server", "TestNoCheckpointOfAFailedLog", "a checkpoint of a failed log"}},
	},
	{
		name: "CutBeforeCheckpoint", why: "the log is cut before the checkpoint has its name",
		edits: []edit{{
			file: "server/checkpoint.go",
			old:  "	bytes, rows, err := w.Finish(ctx)\n",
			new:  "	_ = d.log.Cut(from)\n	bytes, rows, err := w.Finish(ctx)\n",
		}},
		caught: []test{{"server", "TestNoSpaceForCheckpoint", "log from [0-9]+, was"}},
	},
	{
		name: "ForgottenIsForgotten", why: "after a restart nobody knows that outcomes of sessions were forgotten",
		edits: []edit{{
			file: "server/forgotten.go",
			old:  "		return g.restored && sent.Incarnation == now.Incarnation && !g.former\n",
			new:  "		return g.restored && sent.Incarnation == now.Incarnation\n",
		}},
		caught: []test{{"server", "TestForgottenOutcomesStayInDoubt", "is answered"}},
	},
	{
		name: "RepeatedRowHasOneCSN", why: "two rows that one message loads for a key have the same CSN",
		edits: []edit{{
			file: "server/load.go",
			old:  "before.Compare(w.Key) >= 0",
			new:  "before.Compare(w.Key) > 0",
		}},
		caught: []test{{"server", "TestRepeatedLoad", "round 1: account"}},
	},
	{
		name: "HorizonStays", why: "a commit that was durable before it lowered the horizon raises it only with the next one",
		edits: []edit{{
			file: "server/recording.go",
			old:  "	if at <= rc.p.durable.safe() {\n",
			new:  "	if at <= rc.p.durable.safe() && false {\n",
		}},
		caught: []test{{"server", "TestHorizonOfDurableCommit", "the horizon stays at"}},
	},
	{
		name: "CheckpointWithoutOutcomes", why: "the outcomes of sessions are not in checkpoints",
		edits: []edit{{
			file: "server/checkpoint.go",
			old:  "	for _, b := range parts {\n",
			new:  "	for _, b := range parts[:0] {\n",
		}},
		caught: []test{{"server", "TestOutcomesInCheckpoint", "want transaction"}},
	},
	{
		name: "DoubtsHoldUpSessions", why: "a session whose last transaction is in doubt at a server that was started again cannot go on",
		edits: []edit{{
			file: "server/outcomes.go",
			old:  "(f.done || f.seq == 0 || f.left):",
			new:  "(f.done || f.seq == 0):",
		}},
		caught: []test{{"server", "TestSessionOutlivesADoubt", "the next transaction is refused"}},
	},
	{
		name: "OutcomesInAnyOrder", why: "a checkpoint has the outcomes of sessions in the order of a map, which differs from run to run",
		edits: []edit{{
			file: "server/checkpoint.go",
			old:  "	slices.Sort(clients) // so that",
			new:  "	// so that",
		}},
		caught: []test{{"server", "TestEqualOutcomesAreExportedEqually", "in another way"}},
	},
	{
		name: "StepsInAnyOrder", why: "a checkpoint has the transactions of the commit protocol in the order of a map",
		edits: []edit{{
			file: "server/steps.go",
			old:  "	slices.SortFunc(ids, twophase.ID.Compare) // so that",
			new:  "	// so that",
		}},
		caught: []test{{"server", "TestExportInPieces", "is exported after"}},
	},
	{
		name: "CheckpointDoesNotSettle", why: "a checkpoint does not wait for transactions that run when it begins and may be in the log before it",
		edits: []edit{{
			file: "server/checkpoint.go",
			old:  "!k.ended(running); {\n",
			new:  "!k.ended(running[:0]); {\n",
		}},
		caught: []test{{"server", "TestCheckpointWaitsForOutcomes", "is complete before"}},
	},
	{
		name: "CheckpointWithoutShares", why: "a checkpoint has the steps of shares in doubt and not what they write",
		edits: []edit{{
			file: "server/steps.go",
			old:  "			t, o = sd.prepared[id], sd.origins[id]\n",
			new:  "			o = sd.origins[step.ID]\n",
		}},
		caught: []test{{"server", "TestSharesCrossCheckpoints", "is not locked|balance 0, want 5"}},
	},
	{
		name: "CheckpointWithoutDoubts", why: "a checkpoint does not have what is in doubt",
		edits: []edit{{
			file: "internal/twophase/record.go",
			old:  "		return m.prepared(r)\n",
			new:  "",
		}},
		caught: []test{{"server", "TestSharesCrossCheckpoints", "transactions in doubt after a recovery, want 1"}, {"internal/twophase", "TestPromisesAboutTheGoneStay", "checkpoint"}},
	},
	{
		name: "CheckpointWithoutDecisions", why: "a checkpoint does not have the decisions that others may ask for",
		edits: []edit{{
			file: "internal/twophase/record.go",
			old:  "		return m.outcome(r)\n",
			new:  "",
		}},
		caught: []test{{"server", "TestSharesCrossCheckpoints", "balance 0, want 5"}, {"server", "TestHandOversCrossCheckpoints", "balance"}},
	},
	{
		name: "CheckpointWithoutSessionsInDoubt", why: "a checkpoint does not say whose transactions are in doubt",
		edits: []edit{{
			file: "server/steps.go",
			old:  "			t, o = sd.prepared[id], sd.origins[id]\n",
			new:  "			t = sd.prepared[step.ID]\n",
		}},
		caught: []test{{"server", "TestHandOversCrossCheckpoints", "the client is told|balance"}},
	},
	{
		name: "CheckpointWaitsForDoubts", why: "a checkpoint waits until sessions have heard of transactions in doubt",
		edits: []edit{{
			file: "server/checkpoint.go",
			old:  "	return !slices.ContainsFunc(left, func(id wire.ID) bool { _, ok := doubts[id]; return !ok })\n",
			new:  "	return slices.ContainsFunc(left, func(wire.ID) bool { return false })\n",
		}},
		caught: []test{{"server", "TestHandOversCrossCheckpoints", "server 0: context deadline exceeded"}},
	},
	{
		name: "ReadsOfSharesForgotten", why: "a share in doubt that has read more than it writes is restored as if it had not",
		edits: []edit{{
			file: "server/prepared.go",
			old:  "		t.reads = p.writer.shared.beyond(t.owner, held)\n",
			new:  "		t.reads = false\n",
		}},
		caught: []test{{"server", "TestRestoredReads/another_row", "another row is written while the share is in doubt: <nil>"}},
	},
	{
		name: "DoubtsAreNotTold", why: "a client waits for a decision that only a server can tell whose log has failed",
		edits: []edit{{
			file: "server/coordinate.go",
			old:  "	t.driver.outcomes.watch(t.session, after)\n",
			new:  "	_ = after\n",
		}},
		caught: []test{{"server", "TestFailedLogOfAnAgent", "the transaction: the client waits without end"}},
	},
	{
		name: "FailedServerKeepsVersion", why: "a server that cannot use a version of the catalogue keeps those after it from hearing of it",
		edits: []edit{{
			file: "server/catalog.go",
			old:  "		if !w.ok() && step == stepMake {\n",
			new:  "		if !w.ok() {\n",
		}},
		caught: []test{{"server", "TestChangeBesideAFailedLog", "table (mark|extra), partition [02]: "}},
	},
	{
		name: "SharesAfterTheVisit", why: "a checkpoint takes shares in doubt after it has visited the rows",
		edits: []edit{{
			file: "server/checkpoint.go",
			old:  "		err = writeSteps(ctx, w, steps)\n	}\n	if err == nil {\n		err = k.writeRows(ctx, w, len(c.Indexes))\n",
			new:  "		err = k.writeRows(ctx, w, len(c.Indexes))\n	}\n	if steps = k.exportSteps(); err == nil {\n		err = writeSteps(ctx, w, steps)\n",
		}},
		caught: []test{{"server", "TestDecisionDuringCheckpoint", "a decision before operation"}},
	},
	{
		name: "StepsBeforeExport", why: "a checkpoint does not wait for steps of the commit protocol that run at its position",
		edits: []edit{{
			file: "server/checkpoint.go",
			old:  "	k.d.s.parts.settleSteps()\n	for _, p := range k.d.s.parts.here {\n		all",
			new:  "	for _, p := range k.d.s.parts.here {\n		all",
		}},
		caught: []test{{"server", "TestExportWaitsForSteps", "does not wait for a step that ran before"}},
	},
	{
		name: "ExportInOnePiece", why: "nobody else uses the commit protocol of a partition while a checkpoint exports it",
		edits: []edit{{
			file: "server/steps.go",
			old:  "		sd.mu.Unlock()\n		defer sd.mu.Lock()\n		rest()\n",
			new:  "		rest()\n",
		}},
		caught: []test{{"server", "TestExportInPieces", "nobody else can use the machine"}},
	},
	{
		name: "StepsAfterExport", why: "a checkpoint visits rows before what the machines have decided is applied",
		edits: []edit{{
			file: "server/checkpoint.go",
			old:  "	k.d.s.parts.settleSteps()\n	return all\n",
			new:  "	return all\n",
		}},
		caught: []test{{"server", "TestExportWaitsForSteps", "does not wait for a step that runs meanwhile"}},
	},
}

func init() { bugs = slices.Concat(bugs, checkpointBugs) }
