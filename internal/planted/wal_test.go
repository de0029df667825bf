package planted

import "slices"

// lost is what the crash tests report of what was acknowledged.
const lost = "lost: |is missing|is damaged|never appended"

// walBugs are bugs of the log, and of the servers that answer by it.
var walBugs = []bug{
	{
		name: "FramesOneByOne", why: "the writer of a copy begins with the first of the frames that came together, and the rest waits for another sync",
		edits: []edit{{
			file: "internal/wal/copy.go",
			old:  "	for size < len(frames) {\n",
			new:  "	for size == 0 {\n",
		}},
		caught: []test{{"internal/wal", "TestFramesAreOneGroup", "times [0-9]+ frames: "}},
	},
	{
		name: "ValidationIsACommit", why: "a procedure that fails after it has read elsewhere counts as committed after a restart",
		edits: []edit{{
			file: "server/coordinate.go",
			old:  "	if c.Writes() { // else",
			new:  "	if len(c.Parts) > 0 { // else",
		}},
		caught: []test{{"server", "TestRolledBackIsNotCommitted", "sessions have committed"}},
	},
	{
		name: "LateAgain", why: "late commits of a recovered partition may be below those of its former life",
		edits: []edit{{
			file: "internal/block/arena.go",
			old:  "		if old >= to || a.late.CompareAndSwap(old, to) {",
			new:  "		if old >= 0 || a.late.CompareAndSwap(old, to) {",
		}},
		caught: []test{{"internal/block", "TestCoverLate", "the next late CSN is"}},
	},
	{
		name: "AcknowledgeBeforeSync", why: "a group is acknowledged when it is written, before a sync",
		edits: []edit{{
			file: "internal/wal/writer.go",
			old:  "	err := s.file.SyncData()\n",
			new:  "	var err error\n",
		}},
		caught: []test{
			{"internal/wal", "TestCrashAtEveryOperation", lost},
			{"server", "TestCrashAtEveryOperation", lost},
		},
	},
	{
		name: "RecordOfEachPartition", why: "a commit of several partitions of one server is logged as a record of each",
		edits: []edit{{
			file: "server/durability.go",
			old:  "	lsn, v := d.note(&r, 0, at...)\n	if v.ok() {\n",
			new: `	var lsn wal.LSN
	v := verdict{}
	for i := 0; i < len(at) && v.ok(); i++ {
		r.Parts = parts[i : i+1]
		lsn, v = d.note(&r, 0, at[i])
	}
	if v.ok() {
`,
		}},
		caught: []test{{"server", "TestEveryPrefixOfTheLogIsAState", "half-applied|phantom"}},
	},
	{
		name: "SyncErrorRetried", why: "a sync that failed is tried again",
		edits: []edit{{
			file: "internal/wal/writer.go",
			old:  "	err := s.file.SyncData()\n",
			new:  "	err := s.file.SyncData()\n	if err != nil {\n		err = s.file.SyncData()\n	}\n",
		}},
		caught: []test{{"internal/wal", "TestFaultAtEveryOperation/error", "after a failed sync"}},
	},
	{
		name: "RenameNotSynced", why: "a reused segment is written before its new name is durable",
		edits: []edit{{
			file: "internal/wal/prepare.go",
			old:  "	if err := l.syncDir(l.opt.Dir); err != nil {\n		return nil, finalError{err}\n	}\n",
			new:  "",
		}},
		caught: []test{{"internal/wal", "TestSegmentsAreReused", "lost: |holds segment|is missing"}},
	},
	{
		name: "CreateNotSynced", why: "a new segment is written before it is durably in the directory",
		edits: []edit{{
			file: "internal/wal/prepare.go",
			old:  "		if err := l.syncDir(l.opt.Dir); err != nil {\n			return errors.Join(finalError{err}, f.Close())\n		}\n",
			new:  "",
		}},
		caught: []test{{"internal/wal", "TestCrashAtEveryOperation", lost}},
	},
	{
		name: "OneSyncForTwoSegments", why: "a segment is begun before the one before it is durable",
		edits: []edit{{
			file: "internal/wal/writer.go",
			old:  "		if err := l.syncData(s); err != nil {\n",
			new:  "		if to < g.end {\n			pos = to\n			continue\n		}\n		if err := l.syncData(s); err != nil {\n",
		}},
		caught: []test{{"internal/wal", "TestCrashAtEveryOperation", lost}},
	},
	{
		name: "StaleFramesStay", why: "frames behind a torn tail stay, and come back behind new ones",
		edits: []edit{{
			file: "internal/wal/open.go",
			old:  "		clear(b[have:])\n",
			new:  "		if b = b[:have]; have == 0 {\n			break\n		}\n",
		}},
		caught: []test{
			{"internal/wal", "TestStaleFrames", "after the crash"},
			{"internal/wal", "TestFaultInARecovery", "the log has"},
		},
	},
	{
		name: "TailIsTrusted", why: "a log that is opened again syncs the end that it reads, and does not write it again",
		edits: []edit{{
			file: "internal/wal/open.go",
			old:  "		if err := writeAt(s.file, b, at); err != nil {\n",
			new:  "		if err := writeAt(s.file, b[have:], at+have); err != nil {\n",
		}},
		caught: []test{{"internal/wal", "TestFaultAtEveryOperation/clean_pages", lost}},
	},
	{
		name: "DamageIsTorn", why: "damage of what was durable is cut like a torn tail",
		edits: []edit{{
			file: "internal/wal/open.go",
			old:  "		if f.durable > t.end {\n",
			new:  "		if f.durable > t.end && false {\n",
		}},
		caught: []test{
			{"internal/wal", "TestEveryByte", "lost: "},
			{"internal/wal", "TestMark", "marked true: <nil>"},
		},
	},
	{
		name: "RoomIsNotReserved", why: "records are accepted for which the disk has no room",
		edits: []edit{{
			file: "internal/wal/wal.go",
			old:  "	case l.mu.end+size+l.mu.aside-aside <= l.mu.limit:\n",
			new:  "	case l.mu.end+size+l.mu.aside-aside <= l.mu.limit+1<<20:\n",
		}},
		caught: []test{{"internal/wal", "TestNoSpace", "no segment was prepared|does not become full"}},
	},
	{
		name: "AnswerBeforeDurable", why: "a server answers a commit that its log does not have yet",
		edits: []edit{{
			file: "server/answers.go",
			old:  "(a.at > d.safe() || !d.mayAnswer()) {",
			new:  "(a.at > d.safe() || !d.mayAnswer()) && a.id == (wire.ID{}) {",
		}},
		caught: []test{
			{"server", "TestCrashAtEveryOperation", lost},
			{"server", "TestAnswersWait", "a commit did not wait"},
		},
	},
	{
		name: "RefusalIsNotWaitedFor", why: "an insert is refused for a row that the log does not have yet",
		edits: []edit{{
			file: "server/requests.go",
			old:  "	return c == wire.Conflict ||",
			new:  "	return c == wire.Exists || c == wire.Conflict ||",
		}},
		caught: []test{{"server", "TestAnswersWait", "a refusal by one partition did not wait"}},
	},
	{
		name: "ResultIsNotRedone", why: "a recovered server does not remember which requests its log has: it executes them again",
		edits: []edit{{
			file: "server/recovery.go",
			old:  "		if rec.Session != (wire.ID{}) {\n",
			new:  "		if rec.Session.Client == 0 && rec.Session.Seq != 0 {\n",
		}},
		caught: []test{{"server", "TestClientsOutliveCrashes", "a procedure returns [0-9]+, want"}},
	},
	{
		name: "LostLogIsEmpty", why: "a server begins without data when its log is gone",
		edits: []edit{{
			file: "server/durability.go",
			old:  "dir.Bytes(), dir.Served\n",
			new:  "dir.Bytes(), false\n",
		}},
		caught: []test{{"server", "TestLostParts", "without the log"}},
	},
	{
		name: "LostEpochIsTheFirst", why: "a server begins with the first epoch again when its file is gone",
		edits: []edit{{
			file: "server/durability.go",
			old:  "	if dir.Served || dir.New {\n",
			new:  "	if true {\n",
		}, {
			file: "server/recovery.go",
			old:  "	if epoch >= r.s.cfg.hosted.Epoch {\n",
			new:  "	if false {\n",
		}},
		caught: []test{{"server", "TestLostParts", "without EPOCH|with the EPOCH"}},
	},
	{
		name: "EpochBeforeTheLog", why: "a directory counts as served before its log is there",
		edits: []edit{{
			file: "server/durability.go",
			old:  "	if err := checkUnserved(o.FS, dir); err != nil {\n		return nil, err\n	}\n",
			new:  "	if err := checkUnserved(o.FS, dir); err != nil {\n		return nil, err\n	}\n	if err := dir.Begin(); err != nil {\n		return nil, err\n	}\n",
		}},
		caught: []test{{"server", "TestFirstStart", "its log is missing"}},
	},
	{
		name: "CheckpointNameNotSynced", why: "a recovery uses a checkpoint whose name may not be durable, and the log before it is cut",
		edits: []edit{{
			file: "server/checkpoint.go",
			old:  "	if err := datadir.SyncDir(s.cfg.FS, dir); err != nil {\n		return 0, errors.Join(err, f.Close())\n	}\n",
			new:  "",
		}},
		caught: []test{{"server", "TestCheckpointOfAKilledProcess", "after the crash"}},
	},
	{
		name: "DeleteIsNotRedone", why: "recovery leaves out deletes",
		edits: []edit{{
			file: "server/recovery.go",
			old:  "		return ix.Restore(w.Key, nil, block.Absent(csn))\n",
			new:  "		return nil\n",
		}},
		caught: []test{{"server", "TestCrashAtEveryOperation", "under both names|half-applied: note"}},
	},
}

func init() { bugs = slices.Concat(bugs, walBugs) }
