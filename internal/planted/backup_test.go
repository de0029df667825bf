package planted

// backupBugs are bugs of backups.
var backupBugs = []bug{
	{
		name: "RestoreBeyondTick", why: "a restore applies what has committed after the tick",
		edits: []edit{{
			file: "internal/backup/rebuild.go",
			old:  "	if csn.Tick() > c.at {\n",
			new:  "	if false {\n",
		}},
		caught: []test{{"internal/backup", "TestBackup/1_servers", "committed at a tick from"}},
	},
	{
		name: "CloseIgnoresShares", why: "a server closes a tick although a share is prepared that may commit at it",
		edits: []edit{{
			file: "server/backup.go",
			old:  "		tick = min(tick, p.ticks.closed)\n",
			new:  "		tick = min(tick, p.ticks.own.Tick()-1)\n",
		}},
		caught: []test{{"server", "TestClosedTickWaitsForShares", "is closed, a share that is prepared"}},
	},
	{
		name: "ManifestBeforeNames", why: "a manifest may be durable before the names of the files that it tells of",
		edits: []edit{{
			file: "internal/backup/manifest.go",
			old:  "		err = datadir.SyncDir(fs, dir)\n",
			new:  "",
		}},
		caught: []test{{"internal/backup", "TestCrashOfABackup", "file does not exist"}},
	},
	{
		name: "SourcesAreLeftAlone", why: "a data server that is ready is asked for nothing while another one is slow",
		edits: []edit{{
			file: "internal/backup/run.go",
			old:  "		return r.sources[i].keep(ctx, done)\n",
			new:  "		<-done\n		return nil\n",
		}},
		caught: []test{{"internal/backup", "TestKeptWhileOthersAreSlow", "is asked for nothing"}},
	},
	{
		name: "SourcesWaitForTheDisk", why: "a data server is asked for nothing while the disk of the backup is slow",
		edits: []edit{{
			file: "internal/backup/source.go",
			old:  "	kept := s.keep(ctx, done)\n",
			new:  "	var kept error\n",
		}},
		caught: []test{{"internal/backup", "TestKeptWhileOthersAreSlow", "is synced: data server [01] is asked for nothing"}},
	},
	{
		name: "ManifestToldBeforeWritten", why: "a backup that fails tells of a manifest that it has not written",
		edits: []edit{{
			file: "internal/backup/run.go",
			old:  "	if err := r.write(ctx, &next); err != nil {\n",
			new:  "	r.manifest = next\n	if err := r.write(ctx, &next); err != nil {\n",
		}},
		caught: []test{{"internal/backup", "TestManifestIsWhatIsThere", "said to end at tick"}},
	},
	{
		name: "LockedByName", why: "a process gets a directory twice, by two names",
		edits: []edit{{
			file: "internal/datadir/datadir.go",
			old:  "		path = real\n",
			new:  "		_ = real\n",
		}},
		caught: []test{{"internal/datadir", "TestLockedByAnyName", "locked as a and as"}},
	},
	{
		name: "EmptyDirectoryStays", why: "a restore does not take the place of an empty directory",
		edits: []edit{{
			file: "internal/backup/restore.go",
			old:  "	if err := fs.Remove(dir); err != nil && !oserror.IsNotExist(err) {\n		return err\n	}\n",
			new:  "",
		}},
		caught: []test{{"internal/backup", "TestRestoreTakesThePlace", "file exists"}},
	},
	{
		name: "UnfinishedRestoreOpens", why: "what a restore that was killed has left is opened as a data directory",
		edits: []edit{{
			file: "internal/datadir/unfinished.go",
			old:  "CutSuffix(clean, Restoring); ok {\n",
			new:  "CutSuffix(clean, Restoring); ok && false {\n",
		}, {
			file: "internal/datadir/unfinished.go",
			old:  "	if err == nil && marked {\n",
			new:  "	if err == nil && marked && false {\n",
		}},
		caught: []test{{"internal/backup", "TestCrashOfARestore", "what the restore has left is opened"}},
	},
	{
		name: "CompleteRestoreRemoved", why: "a restore removes a directory beside that is not known to be incomplete",
		edits: []edit{{
			file: "internal/datadir/unfinished.go",
			old:  "		if !marked {\n			return fmt",
			new:  "		if false {\n			return fmt",
		}},
		caught: []test{{"internal/datadir", "TestUnfinished", "a complete directory is taken for one that a restore has left"}},
	},
	{
		name: "BackupLogNotPinned", why: "a checkpoint cuts the log that a backup needs",
		edits: []edit{{
			file: "server/backup.go",
			old:  "		before = min(before, b.pin)\n",
			new:  "		_ = b.pin\n",
		}},
		caught: []test{{"server", "TestBackupPinsTheLog", "the log begins at"}},
	},
	{
		name: "PinOutlivesClient", why: "the log stays pinned for a backup whose client is gone",
		edits: []edit{{
			file: "server/log.go",
			old:  "				s.durable.backups.left(id)\n",
			new:  "				_ = id\n",
		}},
		caught: []test{{"server", "TestBackupPinsTheLog/client_is_gone", "still pinned"}},
	},
	{
		name: "BaseWithoutShares", why: "a base begins while shares are prepared that the log from the pin on does not have",
		edits: []edit{{
			file: "server/backup.go",
			old:  "v.ok() && tick >= now {\n",
			new:  "v.ok() && tick >= 0 {\n",
		}, {
			file: "server/backup.go",
			old:  "	now := d.s.parts.highestTick()\n",
			new:  "",
		}},
		caught: []test{{"server", "TestClosedTickWaitsForShares", "a base begins while a share"}},
	},
	{
		name: "ChangesBeforeClosed", why: "a feed delivers a tick that one data server has closed, and not all",
		edits: []edit{{
			file: "internal/changes/follow.go",
			old:  "		closed = min(closed, clock.Tick(w.sources[i].closed.Tick))\n	}\n	if closed < w.f.from",
			new:  "		closed = max(closed%block.MaxTick, clock.Tick(w.sources[i].closed.Tick))\n	}\n	if closed < w.f.from",
		}},
		caught: []test{{"server", "TestChanges", "was closed|comes twice|after one of tick|it was there|is no change|rows of"}},
	},
	{
		name: "LastChangeWaits", why: "a feed that has read a change of a tick that is not closed delivers it when something else commits",
		edits: []edit{{
			file: "internal/changes/follow.go",
			old:  "		if !news && len(w.f.ticks) == 0 && w.f.from >= to {\n",
			new:  "		if !news && w.f.from >= to {\n",
		}},
		caught: []test{{"server", "TestFeedHasTheLastChange", "does not come"}},
	},
	{
		name: "FeedTakesLateCommits", why: "a server that commits at a tick which it has closed is not noticed by a feed",
		edits: []edit{{
			file: "server/ticks.go",
			old:  "	if t := ts.own.Closed(); t != ts.closed {\n",
			new:  "	if t := ts.own.Tick(); t != ts.closed {\n",
		}},
		caught: []test{{"server", "TestChanges", "was closed|comes twice|after one of tick|it was there|is no change|rows of"}},
	},
	{
		name: "LateAfterAllTicks", why: "a feed that reads a log again takes what it has delivered before for late commits",
		edits: []edit{{
			file: "internal/changes/follow.go",
			old:  "			w.f.streams[i].late = w.sources[i].end\n			w.sources[i].pin",
			new:  "			if w.f.from >= closed {\n				w.f.streams[i].late = w.sources[i].end\n			}\n			w.sources[i].pin",
		}},
	},
	{
		name: "TooOldIsCut", why: "a feed that is too old for two logs fails with an error without a type",
		edits: []edit{{
			file: "internal/changes/follow.go",
			old:  "		w.sources[i].began = false // another attempt",
			new:  "		_ = i // another attempt",
		}},
	},
	{
		name: "ChangesAreSplit", why: "a feed delivers the shares of a transaction one by one",
		edits: []edit{{
			file: "internal/changes/feed.go",
			old:  "	if id == (twophase.ID{}) { // all",
			new:  "	if true { // all",
		}},
		caught: []test{{"internal/changes", "TestFeed", "has keys"}},
	},
	{
		name: "ShareWithoutDecision", why: "a feed delivers a share whose transaction was aborted",
		edits: []edit{{
			file: "internal/changes/feed.go",
			old:  "	if len(r.Parts) == 0 {\n		return nil\n	}\n	p := &r.Parts[0]\n",
			new:  "	if len(r.Parts) == 0 {\n		if h == nil {\n			return nil\n		}\n		return f.put(server, h.vote, applied{server: server, partition: r.Partition, prepared: h.at, done: start, writes: h.writes}, of.id, h.bytes)\n	}\n	p := &r.Parts[0]\n",
		}},
		caught: []test{{"internal/changes", "TestFeed", "which did not commit"}},
	},
	{
		name: "ResumesTooLate", why: "a feed that goes on after a change leaves out the next one of its tick",
		edits: []edit{{
			file: "internal/changes/feed.go",
			old:  "n: uint32(n) + 1, cluster",
			new:  "n: uint32(n) + 2, cluster",
		}},
		caught: []test{{"internal/changes", "TestFeed", "want"}},
	},
	{
		name: "ResumesTooEarly", why: "a feed that goes on after a change delivers it again",
		edits: []edit{{
			file: "internal/changes/feed.go",
			old:  "n: uint32(n) + 1, cluster",
			new:  "n: uint32(n), cluster",
		}},
		caught: []test{{"internal/changes", "TestFeed", "want"}},
	},
	{
		name: "CursorWithoutShares", why: "what follows a cursor lacks the shares of later decisions",
		edits: []edit{{
			file: "internal/changes/feed.go",
			old:  "	t.low[server] = min(t.low[server], a.prepared) //",
			new:  "	t.low[server] = min(t.low[server], a.done) //",
		}},
		caught: []test{{"internal/changes", "TestFeed", "that is not in the log"}},
	},
	{
		name: "ClosedTickNotLogged", why: "a server says that a tick is closed, and recovers behind it",
		edits: []edit{{
			file: "server/recovery.go",
			old:  "	case redo.Closed:\n		r.tick = max(r.tick, rec.Tick)\n",
			new:  "	case redo.Closed:\n",
		}},
		caught: []test{{"server", "TestClosedTickOutlivesTheServer", "is the present one"}},
	},
	{
		name: "OldestIgnoresShares", why: "a server says that its log has everything after a tick, and a share from before may commit later",
		edits: []edit{{
			file: "server/feed.go",
			old:  "		if !v.ok() || tick < l.need {\n",
			new:  "		if tick < 0 || !v.ok() {\n",
		}},
		caught: []test{{"server", "TestOldestTickWaitsForShares", "is known"}},
	},
	{
		name: "FeedNotPinned", why: "what a feed has read of the log is cut, although it may need it again",
		edits: []edit{{
			file: "server/backup.go",
			old:  "	if !b.feed {\n		b.pin = ",
			new:  "	{\n		b.pin = ",
		}},
		caught: []test{{"server", "TestFeedPinsTheLog", "the log begins at"}},
	},
}
