package planted

// inMembers is what the explorer of package replica reports if a member lacks what
// was acknowledged, or if two things were acknowledged at one position.
const inMembers = "was acknowledged|is acknowledged, after"

// replicaBugs are bugs of replication.
var replicaBugs = []bug{
	{
		name: "RecoveredVersionIsTold", why: "a version of the catalogue that was recovered is given to other servers before all copies in sync have it",
		edits: []edit{{
			file: "server/build.go",
			old:  "	if cat.s.durable.awaitRecovered(cat.s.workers.ctx) != nil {\n",
			new:  "	if cat.s.workers.ctx.Err() != nil {\n",
		}},
		caught: []test{{"server", "TestRecoveredVersionIsConfirmedFirst", "the other server has version"}},
	},
	{
		name: "HorizonOfTheFastest", why: "the horizon is the position of the fastest copy",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "			least = min(least, h.copies[k].durable)",
			new:  "			least = max(least, h.copies[k].durable)",
		}},
		caught: []test{
			{"internal/replica", "TestExplore", inMembers},
			{"server", "TestAnswersAreInTheCopies", "durable up to"},
		},
	},
	{
		name: "AcknowledgedBeforeTheCopy", why: "answers wait for the server's own log alone",
		edits: []edit{{
			file: "server/durability.go",
			old:  "	if d.group == nil {\n		return d.log.Durable()\n	}\n	return",
			new:  "	if d.group != nil {\n		return d.log.Durable()\n	}\n	return",
		}, {
			file: "server/durability.go",
			old:  "wal.LSN(d.group.horizon.Load())",
			new:  "d.log.Durable()",
		}},
		caught: []test{
			{"server", "TestAnswersAreInTheCopies", "durable up to"},
			{"server", "TestSilentCopyLeaves", "acknowledged while the set is"},
		},
	},
	{
		name: "AcknowledgedBeforeItsSync", why: "a copy acknowledges what it has not synced",
		edits: []edit{{
			file: "server/keepcopy.go",
			old:  "	if err == nil && c.log != nil {\n		err = c.log.Wait(ctx, c.log.End())\n	}\n",
			new:  "",
		}, {
			file: "server/keepcopy.go",
			old:  "uint64(c.log.End())+uint64(len(c.part)), uint64(c.log.Durable())",
			new:  "uint64(c.log.End())+uint64(len(c.part)), uint64(c.log.End())",
		}},
		caught: []test{{"server", "TestAnswersAreInTheCopies", "durable up to"}},
	},
	{
		name: "AcknowledgedByFew", why: "the horizon moves on with fewer members than are required",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "	if h.deposed || !h.Enough() {\n",
			new:  "	if h.deposed {\n",
		}},
		caught: []test{{"internal/replica", "TestExplore", "with 1 members, want 2"}, {"server", "TestFewCopies", "at one place alone"}},
	},
	{
		name: "WritesWithFewCopies", why: "a server takes writes while fewer copies are in sync than are required",
		edits: []edit{{
			file: "server/copies.go",
			old:  "	if d == nil || d.group == nil || d.group.enough.Load() {\n",
			new:  "	if d == nil || d.group == nil || !d.group.deposed.Load() {\n",
		}},
		caught: []test{{"server", "TestFewCopies", "a write: "}},
	},
	{
		name: "LeavesAfterTheHorizon", why: "the horizon moves without a copy before the copy has left the set",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "	m := h.set.Members\n	if h.changes {\n		m |= h.next.Members\n	}\n",
			new:  "	m := h.set.Members\n	if h.changes {\n		m = h.next.Members\n	}\n",
		}},
		caught: []test{{"internal/replica", "TestExplore", inMembers}},
	},
	{
		name: "EntersAfterTheAnswer", why: "a copy that enters counts only when the store's answer has come",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "	if h.changes {\n		m |= h.next.Members\n	}\n	for k := range h.copies {\n		if h.copies[k].entering {\n			m = m.With(Member(k))\n		}\n	}\n",
			new:  "",
		}},
		caught: []test{{"internal/replica", "TestExplore", inMembers}},
	},
	{
		name: "EntersBehind", why: "a copy enters the set before it has caught up",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "			case c.entering && c.durable >= max(h.horizon, h.floor):",
			new:  "			case c.entering:",
		}},
		caught: []test{{"internal/replica", "TestExplore", inMembers}},
	},
	{
		name: "FormerAnswersForgotten", why: "a copy enters with what this home has acknowledged, without what its former life has",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "c.durable >= max(h.horizon, h.floor):",
			new:  "c.durable >= h.horizon:",
		}},
		caught: []test{{"internal/replica", "TestExplore", inMembers}},
	},
	{
		name: "ChangeMadeTwice", why: "a delayed change of the set is made once more, when the set has come back to what it was",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "		h.next.Version++\n",
			new:  "",
		}},
		caught: []test{{"internal/replica", "TestExplore", inMembers}},
	},
	{
		name: "PromotedOutsideTheSet", why: "a copy that is not in sync takes the place of its home",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "	case k < 1 || !was.Members.Has(k):",
			new:  "	case k < 1:",
		}},
		caught: []test{
			{"internal/replica", "TestExplore", inMembers},
			{"server", "TestSilentCopyLeaves", "not in sync"},
		},
	},
	{
		name: "OldEpochAccepted", why: "a copy takes the log of a home that was replaced",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "	if e < c.Epoch {\n		return false\n	}\n",
			new:  "",
		}, {
			file: "internal/replica/replica.go",
			old:  "return e == c.Epoch && at == c.End }",
			new:  "return at == c.End }",
		}},
		caught: []test{{"internal/replica", "TestExplore", inMembers}},
	},
	{
		name: "OtherLineage", why: "a copy made before another copy became the home goes on with the new home's log",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "	return since == set.Since && end >= first && end <= durable",
			new:  "	return end >= first && end <= durable",
		}},
		caught: []test{{"internal/replica", "TestExplore", inMembers + "|does not go on"}},
	},
	{
		name: "CopyWithoutIdentityCounts", why: "a copy that could not be completed passes for one that can take the place of its home",
		edits: []edit{{
			file: "server/keepcopy.go",
			old:  "		err = errors.Join(err, c.log.Close())\n		c.log = nil\n		return err\n",
			new:  "		return err\n",
		}},
		caught: []test{{"server", "TestCopyWithoutIdentity", "the copy is a member of"}},
	},
	{
		name: "LostLogIsAnEmptyCopy", why: "a copy that has lost its log passes for an empty one",
		edits: []edit{{
			file: "server/keepcopy.go",
			old:  "wal.Options{Exists: true}",
			new:  "wal.Options{}",
		}},
		caught: []test{{"server", "TestCopyWithoutLog", "passes for an empty one"}},
	},
	{
		name: "UncertainSetIsMade", why: "a change of a set is taken for made although its sync has failed",
		edits: []edit{{
			file: "server/sets.go",
			old:  "			f.failed = err\n",
			new:  "			_ = seen\n",
		}},
		caught: []test{{"server", "TestUncertainSetStays", "and after a crash it is"}},
	},
	{
		name: "AdoptedIsStillACopy", why: "a copy that takes the place of its home may be a copy again after a crash",
		edits: []edit{{
			file: "internal/datadir/copy.go",
			old:  "	if err := SyncDir(fs, from); err != nil {\n		return err\n	}\n	if err := fs.Rename",
			new:  "	if err := fs.Rename",
		}},
		caught: []test{{"internal/datadir", "TestCrashOfAnAdoption", "is the copy of a data directory"}},
	},
	{
		name: "OldNameGoesFirst", why: "an adopted directory loses its old name although its new one is not durable",
		edits: []edit{{
			file: "internal/datadir/copy.go",
			old:  "	if err := SyncDir(fs, fs.PathDir(to)); err != nil {\n		return err\n	}\n	return SyncDir(fs, fs.PathDir(from))\n",
			new:  "	return errors.Join(SyncDir(fs, fs.PathDir(to)), SyncDir(fs, fs.PathDir(from)))\n",
		}},
		caught: []test{{"internal/datadir", "TestFaultInAnAdoption", "is no complete copy"}},
	},
	{
		name: "NameIsNotSynced", why: "a start does not make the name of the directory durable that it finds",
		edits: []edit{{
			file: "internal/datadir/datadir.go",
			old:  "cmp.Or(SyncDir(fs, path), syncName(fs, path))",
			new:  "cmp.Or(SyncDir(fs, path))",
		}},
		caught: []test{{"internal/datadir", "TestFaultInAnAdoption", "is gone after a crash"}},
	},
	{
		name: "ReplacedServes", why: "a directory is served although a copy has taken its place",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "	if since != 0 && since != was.Since {",
			new:  "	if false {",
		}},
		caught: []test{
			{"internal/replica", "TestExplore", "serves again"},
			{"server", "TestLineageOutlivesEpochs", "a directory that was replaced is served"},
		},
	},
	{
		name: "OlderStateServes", why: "an older state of a directory is served",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "	if epoch <= was.Epoch {",
			new:  "	if false {",
		}},
		caught: []test{{"server", "TestOlderStateIsRefused", "an older state"}},
	},
	{
		name: "AttemptsRaiseTheEpoch", why: "an attempt to serve an older state of a directory raises its epoch",
		edits: []edit{{
			file: "server/durability.go",
			old:  "		if err := s.cfg.notReplaced(); err != nil {\n			return nil, err\n		}\n",
			new:  "",
		}, {
			file: "server/recovery.go",
			old:  "	set, err := d.askSet()\n	if err != nil {\n		return err\n	}\n	if err := d.dir.Begin(); err != nil {\n		return err\n	}\n",
			new:  "	if err := d.dir.Begin(); err != nil {\n		return err\n	}\n	set, err := d.askSet()\n	if err != nil {\n		return err\n	}\n",
		}},
		caught: []test{{"server", "TestOlderStateIsRefused", "an older state"}},
	},
	{
		name: "EmptyIsNotLost", why: "a start with an empty directory leaves one in the place of a lost one",
		edits: []edit{{
			file: "server/durability.go",
			old:  "		if err := s.cfg.notReplaced(); err != nil {\n			return nil, err\n		}\n",
			new:  "",
		}},
		caught: []test{{"server", "TestEmptyDirectoryIsNotServed", "a copy takes the place"}},
	},
	{
		name: "LinksAreNotSeen", why: "the directories of data servers that are links are not seen, and what is there is served later",
		edits: []edit{{
			file: "internal/cluster/data.go",
			old:  "info, err := os.Stat(at)",
			new:  "info, err := os.Lstat(at)",
		}},
		caught: []test{{"internal/cluster", "TestLinkedDirectories", "and <nil>, <nil> is seen"}},
	},
	{
		name: "DamagedCopyIsAdopted", why: "a damaged copy takes the place of a lost directory although another one is whole",
		edits: []edit{{
			file: "server/sets.go",
			old:  "			_, err = CheckCopy(f.fs, from, id, CopyRead{})\n",
			new:  "			_ = id\n",
		}},
		caught: []test{{"server", "TestDamagedCopyIsNotAdopted", "a whole copy in sync is there"}},
	},
	{
		name: "StaleKeeperIsTrusted", why: "copies in an older directory of their keeper are taken for present ones",
		edits: []edit{{
			file: "server/sets.go",
			old:  "		err = f.present(at, of[at])\n",
			new:  "		err = nil\n",
		}},
		caught: []test{{"server", "TestStaleKeeperIsNotTrusted", "the account has 1, want 2"}},
	},
	{
		name: "SetChangesFirst", why: "the set is changed for an adoption that cannot be carried out",
		edits: []edit{{
			file: "server/sets.go",
			old:  "	if err := datadir.Adoptable(f.fs, from, ServerDir(f.dir, int(home))); err != nil {\n		return err\n	}\n",
			new:  "",
		}},
		caught: []test{{"server", "TestAdoptionInTheWay", "nothing has happened meanwhile"}},
	},
	{
		name: "DamagedIdentityIsNoServer", why: "when no directory has an identity that can be read, the error does not say which one is damaged",
		edits: []edit{{
			file: "server/sets.go",
			old:  "			damaged = cmp.Or(damaged, err)\n",
			new:  "			_ = cmp.Or(damaged, err)\n",
		}},
		caught: []test{{"server", "TestDamagedCopies", "server-1/IDENTITY .* does not say in a line what is damaged"}},
	},
	{
		name: "ShorterHomeGoesOn", why: "a home goes on that lacks what a copy in sync has, and makes the copy anew",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "	lacks := h.set.Members.Has(k) && durable > h.durable\n",
			new:  "	lacks := false\n",
		}},
		caught: []test{{"server", "TestLostEndOfLog", ": the home finds"}},
	},
	{
		name: "DamagedCopyStays", why: "a damaged copy is never made anew",
		edits: []edit{{
			file: "server/keepcopy.go",
			old:  " || errors.As(err, new(*wal.CorruptError)) {",
			new:  " {",
		}},
		caught: []test{{"server", "TestDamagedCopyIsMadeAnew", ": the damaged copy leaves"}},
	},
	{
		name: "RecoveredOutcomeIsTold", why: "the outcome of a commit that was recovered is told before the copies have it",
		edits: []edit{{
			file: "server/answers.go",
			old:  "	as.tell(r, resp)\n",
			new:  "	as.reply(r, resp)\n",
		}},
		caught: []test{{"server", "TestRecoveredIsConfirmedFirst", "the outcome .* was told"}},
	},
	{
		name: "BeginningIsEnough", why: "a copy that begins sessions and takes nothing stays in the set",
		edits: []edit{{
			file: "server/copies.go",
			old:  "err == nil && m.Step == wire.CopyFrames {",
			new:  "err == nil {",
		}},
		caught: []test{{"server", "TestFullCopyLeaves", "waits for a copy that is full"}},
	},
	{
		name: "DeposedGoesOn", why: "a home whose set another one has changed acknowledges more",
		edits: []edit{{
			file: "internal/replica/replica.go",
			old:  "	case now != h.set:\n		h.deposed = true\n",
			new:  "	case now != h.set:\n		h.set, h.changes = now, false\n",
		}},
		caught: []test{{"internal/replica", "TestExplore", inMembers}},
	},
	{
		name: "RecoveredIsSafe", why: "what a home recovers is read before its copies are known to have it",
		edits: []edit{{
			file: "server/recovery.go",
			old:  "	r.doubtCopies()\n",
			new:  "",
		}},
		caught: []test{{"server", "TestRecoveredIsConfirmedFirst", "the copy does not have it"}},
	},
	{
		name: "CopyResetTwice", why: "a step that was delayed removes a copy that is a member",
		edits: []edit{{
			file: "server/keepcopy.go",
			old:  "|| m.Session != c.session {",
			new:  "|| m.Session > c.session {",
		}},
		caught: []test{{"server", "TestDelayedSteps", "a session before"}},
	},
	{
		name: "MemberMadeAnew", why: "a copy in sync that has lost its disk is made anew while the set says that it has everything",
		edits: []edit{{
			file: "server/copies.go",
			old:  "		case h.Counts(l.k):\n			h.Lost(l.k)\n",
			new:  "		case false:\n",
		}},
		caught: []test{{"server", "TestMemberLeavesBeforeItIsMadeAnew", "its copy counts as complete"}},
	},
	{
		name: "EntersWithoutItsCheckpointsLog", why: "a copy enters the set without the end of the log that its checkpoint may tell of",
		edits: []edit{{
			file: "server/copies.go",
			old:  " && wal.LSN(state.Durable) >= l.need && !h.Counts(l.k) {",
			new:  " && !h.Counts(l.k) {",
		}},
		caught: []test{{"server", "TestCopyEntersWithItsCheckpointsLog", "the copy enters the set with the log up to"}},
	},
	{
		name: "DrainedCopyLeavesFirst", why: "a copy leaves the set of a drained host before another one is in sync",
		edits: []edit{{
			file: "server/copies.go",
			old:  "			return b && l.g.home.Set().Members.Has(o.k)",
			new:  "			return b",
		}},
		caught: []test{{"internal/cluster", "TestDrain", "1 copies of server 0 were in sync"}},
	},
	{
		name: "GoesWithoutACopy", why: "a data server leaves its host for one that has no copy in sync",
		edits: []edit{{
			file: "internal/cluster/move.go",
			old:  "	return to, s.Map.Set(server).Members.Has(s.Map.Copy(server, to))\n",
			new:  "	return to, true\n",
		}},
		caught: []test{{"internal/cluster", "TestMoveWaitsForTheCopy", "for one that has no copy in sync"}},
	},
	{
		name: "MovesWhatHangs", why: "a data server that has not closed gives its lease back when it moves",
		edits: []edit{{
			file: "internal/cluster/join.go",
			old:  "		if errors.Is(cerr, errNotClosed) && m.place != nil {\n",
			new:  "		if errors.Is(cerr, errNotClosed) && m.place == nil {\n",
		}},
		caught: []test{{"internal/cluster", "TestHangingHomeIsNotMoved", "the lease was given back"}},
	},
	{
		name: "ZonesAreNotCounted", why: "a copy is in the zone of its home although another zone has a host for it",
		edits: []edit{{
			file: "server/copies.go",
			old:  "			c.mate = mates[c.zone]\n",
			new:  "			c.mate = mates[c.zone] * 0\n",
		}},
		caught: []test{{"internal/cluster", "TestCopiesAreInOtherZones", "every server has its copy in the other zone"}},
	},
	{
		name: "BadDiskKeepsItsLease", why: "a host whose disk does not take its log any more goes on to hold the lease of its data server",
		edits: []edit{{
			file: "internal/cluster/move.go",
			old:  "		if err := m.broken(); err != nil {\n",
			new:  "		if err := m.broken(); err != nil && m.place == nil {\n",
		}},
		caught: []test{{"internal/cluster", "TestBadDiskIsTakenOver", "host 0 runs on"}},
	},
	{
		name: "IdleHostsLook", why: "a host looks at the servers of others as often as when one of them is lost",
		edits: []edit{{
			file: "internal/cluster/takeover.go",
			old:  "		case <-time.After(rest):\n",
			new:  "		case <-time.After(min(rest, takeoverTick)):\n",
		}},
		caught: []test{{"internal/cluster", "TestIdleHostsRest", "looked"}},
	},
	{
		name: "IdleHostsAttend", why: "a host looks whether it is to give its own server away as often as when that is to be",
		edits: []edit{{
			file: "internal/cluster/move.go",
			old:  "		case <-time.After(m.rest()):\n",
			new:  "		case <-time.After(takeoverTick):\n",
		}},
		caught: []test{{"internal/cluster", "TestIdleHostsRest", "looked"}},
	},
	{
		name: "IdleHomesLookAtCopies", why: "a home looks sixteen times within its patience whether its copies answer, although nothing can have changed",
		edits: []edit{{
			file: "server/copies.go",
			old:  "		t.Reset(g.rest())\n",
			new:  "		t.Reset(g.s.cfg.CopyPatience / 16)\n",
		}},
		caught: []test{{"server", "TestIdleServerRests", "looked at its copies"}},
	},
	{
		name: "SilentCopiesStay", why: "a home whose copies answer no more looks at them when something else wakes it",
		edits: []edit{{
			file: "server/copies.go",
			old:  "	rest := 4 * soon\n",
			new:  "	rest := time.Hour\n",
		}, {
			file: "server/copies.go",
			old:  "				rest = min(rest, g.s.cfg.CopyPatience-time.Since(l.last))\n",
			new:  "				rest = max(rest, g.s.cfg.CopyPatience-time.Since(l.last))\n",
		}},
		caught: []test{{"server", "TestSilentCopyLeaves", "the commit goes on without the copy"}},
	},
	{
		name: "OwnServerGoesFirst", why: "a host gives its own data server away while it has another one, which a keeper does not run",
		edits: []edit{{
			file: "internal/cluster/move.go",
			old:  "			if o.Index != own && o.Host == ownHost(own) { //",
			new:  "			if o.Index < 0 { //",
		}, {
			file: "internal/cluster/move.go",
			old:  "		if h.busy || h.member != nil {\n",
			new:  "		if h == nil {\n",
		}},
		caught: []test{{"internal/cluster", "TestOwnServerGoesLast", "has given its own server away"}},
	},
	{
		name: "TakenBeforeAllHaveStarted", why: "a host takes over the data server of one that is slow to start with it",
		edits: []edit{{
			file: "internal/cluster/takeover.go",
			old:  " && t.o.settled() && mine:\n",
			new:  " && mine:\n",
		}},
		caught: []test{{"internal/cluster", "TestNothingIsTakenBeforeAllHaveStarted", "before its own has had the chance"}},
	},
	{
		name: "KilledHostStartsByItself", why: "a host that was killed while it started is started again by itself",
		edits: []edit{{
			file: "internal/cluster/hosts.go",
			old:  "		f.set(e.host, state, 0)\n		h.answer(reply{})\n	case e.err",
			new:  "		f.retry(e.host, fmt.Errorf(\"%w: %s\", ErrLost, state))\n		h.answer(reply{})\n	case e.err",
		}},
		caught: []test{{"internal/cluster", "TestHostsStartAgain", ": host 1 killed"}},
	},
	{
		name: "RemovedInPart", why: "hosts whose data was being removed start with what is left of it",
		edits: []edit{{
			file: "internal/cluster/hostsdir.go",
			old:  "	case ok && was.Removing:",
			new:  "	case ok && was.Removing && was.Moving:",
		}},
		caught: []test{{"internal/cluster", "TestHostsData", "not of 2"}},
	},
	{
		name: "GivenCopyTakesSteps", why: "a copy that was given away to the one who opens its data server takes what the home still sends",
		edits: []edit{{
			file: "server/keepcopy.go",
			old:  "	case c.given:\n		return state, fmt.Errorf",
			new:  "	case c.given && c.home > 1<<20:\n		return state, fmt.Errorf",
		}},
		caught: []test{{"server", "TestYieldedCopy", "have changed after it was given away"}},
	},
	{
		name: "SessionOutlivesTheFiles", why: "a copy that was given away and comes back goes on in the session before",
		edits: []edit{{
			file: "server/keepcopy.go",
			old:  "else if !c.begun || replica",
			new:  "else if replica",
		}},
		caught: []test{{"server", "TestStepsAfterACopyWasTaken", "taken again without a directory: step"}},
	},
	{
		name: "ForgetsTheEpochOfACopy", why: "a copy that is removed to be made anew forgets the epoch, so that after a crash an earlier home is heard",
		edits: []edit{{
			file: "server/keepcopy.go",
			old:  "datadir.EmptyCopy(",
			new:  "datadir.RemoveCopy(",
		}},
		caught: []test{{"server", "TestCopyCrashPoints", "a step of an epoch before is taken"}},
	},
	{
		name: "AnyKeptCopyIsTheData", why: "a host that comes back takes a copy for the data of its server that the map does not name",
		edits: []edit{{
			file: "internal/cluster/keep.go",
			old:  " && at.Tried == uint64(where.Instance)",
			new:  "",
		}},
		caught: []test{{"internal/cluster", "TestFinishReturn", "with a map of"}},
	},
	{
		name: "ComesBackWithoutItsCopies", why: "a host that has its data server back removes the copies of others that it kept meanwhile",
		edits: []edit{{
			file: "internal/cluster/keep.go",
			old:  "		moveWhole(fs, fs.PathJoin(keep, server.CopiesDir), fs.PathJoin(own, server.CopiesDir)),\n",
			new:  "",
		}},
		caught: []test{{"internal/cluster", "TestFinishReturn", "copies/server-0 is"}},
	},
	{
		name: "RemovesTheFormerFirst", why: "what a host had of its data server is removed before the copy is known to be the data",
		edits: []edit{{
			file: "internal/cluster/keep.go",
			old:  "	if pending {\n		at, err",
			new:  "	if err := fs.RemoveAll(own); err != nil {\n		return err\n	}\n	if pending {\n		at, err",
		}},
		caught: []test{{"internal/cluster", "TestFinishReturn", "with a map of"}},
	},
	{
		name: "KeepsItsOwnHost", why: "a host keeps the copy of a data server that runs there",
		edits: []edit{{
			file: "server/keepcopy.go",
			old:  "	case m.Host == k.host:\n",
			new:  "	case m.Host == k.host && m.To == k.host+1:\n",
		}},
		caught: []test{{"server", "TestKeepersRefuse", "from host 1 to"}},
	},
	{
		name: "TakesOverUnread", why: "a damaged copy takes the place of a server that is lost although another one is whole",
		edits: []edit{{
			file: "server/readcopy.go",
			old:  "		if err := readBase(fs, dir, now.Base); err != nil {\n",
			new:  "		if err := readBase(fs, dir, 0); err != nil {\n",
		}, {
			file: "server/readcopy.go",
			old:  "	err = readBase(k.fs, c.dir, r.Base)\n",
			new:  "",
		}},
		caught: []test{
			{"internal/cluster", "TestDamagedCopyTakesNothingOver", "whose copy is damaged"},
			{"server", "TestDamageIsRead", "a damaged copy is read: <nil>"},
		},
	},
	{
		name: "TheRestIsUnread", why: "what a copy got after it was read is not read when it takes the place of its home",
		edits: []edit{{
			file: "server/readcopy.go",
			old:  "	err = log.Replay(wal.LSN(now.Log), func(*wal.Record) error { return nil })\n",
			new:  "",
		}},
		caught: []test{{"server", "TestTheRestIsRead", "the copy is read up to"}},
	},
	{
		name: "InstallHoldsTheLog", why: "a copy takes nothing of the log while it reads a checkpoint",
		edits: []edit{{
			file: "server/keepcopy.go",
			old:  "		return err == nil, err\n	default:\n		return false, nil\n",
			new:  "		return err == nil, err\n",
		}},
		caught: []test{{"server", "TestInstallBesideTheLog", "waits for a copy that installs a checkpoint"}},
	},
	{
		name: "RemovesItsHome", why: "a host removes a data server that it has taken over because of an older map",
		edits: []edit{{
			file: "internal/cluster/takeover.go",
			old:  "err != nil || !ok || where.Host == t.o.host() || !replaced {",
			new:  "err != nil || !ok || where.Host == t.o.host()+1 || replaced {",
		}},
		caught: []test{{"internal/cluster", "TestStoredAtOneHost", "datadir|homes"}},
	},
	{
		name: "CopiesAreNotVerified", why: "the copies in a data directory are not among what is verified",
		edits: []edit{{
			file: "internal/cluster/data.go",
			old:  "{patterns, false}, {copies, true}} {",
			new:  "{patterns, false}, {nil, len(copies) > 0}} {",
		}},
		caught: []test{{"internal/cluster", "TestStoredAtOneHost", "want .*copies"}},
	},
	{
		name: "RemovalComesBack", why: "hosts count as removed before that survives a crash",
		edits: []edit{{
			file: "internal/cluster/hostsdir.go",
			old:  "	if err := datadir.SyncDir(h.fs, h.dir); err != nil {\n",
			new:  "	if err := error(nil); err != nil {\n",
		}},
		caught: []test{{"internal/cluster", "TestHostsAreRemovedFirst", "before the removal of the hosts is durable"}},
	},
}
