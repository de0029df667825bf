package command

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"drtmx/internal/backup"
	"drtmx/internal/cli"
	"drtmx/internal/clock"
	"drtmx/internal/cluster"
	"drtmx/internal/datadir"
)

// backupFlags are those of the command backup.
type backupFlags struct {
	where  whereFlags
	dir    string
	follow bool
	length time.Duration
	json   bool
}

func (a *app) backupCommand() *cobra.Command {
	f := &backupFlags{}
	c := &cobra.Command{
		Use:   "backup --dir DIR",
		Short: "Back up a running cluster, so that it can be restored to any moment of the backup",
		Long: `Copies the data of a running cluster into DIR, which must be empty or not exist,
while clients go on: of drtmx cluster up, or another cluster by --runtime-dir or
--connect. Its data servers must have been started with --durability disk. With
--follow it goes on copying what commits, until it is interrupted or --for is over;
drtmx restore can then restore the data to any moment in between.`,
		Args: cobra.ArbitraryArgs, // the commands below
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("%s: unknown command %q, want verify, or flags only", c.CommandPath(), args[0])
			}
			if err := f.check(c.Flags().Changed); err != nil {
				return err
			}
			return a.backup(c.Context(), f)
		},
	}
	f.where.add(c)
	c.Flags().Var((*dirValue)(&f.dir), "dir", "directory of the backup")
	c.Flags().BoolVar(&f.follow, "follow", false, "go on copying what commits, until the command is interrupted")
	c.Flags().DurationVar(&f.length, "for", 0, "with --follow, which it implies: end after this time, such as 10m")
	c.Flags().BoolVar(&f.json, "json", false, "print what the backup has as a JSON object")
	c.AddCommand(a.backupVerifyCommand())
	return c
}

func (f *backupFlags) check(given func(string) bool) error {
	switch {
	case f.dir == "":
		return cli.Usagef("--dir is required: a directory for the backup")
	case given("for") && f.length <= 0:
		return cli.Usagef("--for %v: want more than 0s", f.length)
	}
	f.follow = f.follow || f.length > 0
	return requireCluster(&f.where)
}

// asBackupUsage marks the errors of backups that are the user's.
func asBackupUsage(err error) error {
	return asUsage(err, backup.ErrNoBackup, backup.ErrIncomplete, backup.ErrInUse, backup.ErrRange, backup.ErrVersion, datadir.ErrUnfinished, datadir.ErrNotDir)
}

func (a *app) backup(ctx context.Context, f *backupFlags) error {
	c, err := f.where.connectRunning(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	bar := a.progressOf("backup")
	said := false
	o := backup.Options{
		Addrs: c.Addrs(), Dial: c.Config().Dial, Dir: f.dir, Follow: f.follow, For: f.length,
		Progress: func(p backup.Progress) { bar.set(p.Done, p.Total, "%d of about %d rows", p.Done, p.Total) },
		Moved: func(m *backup.Manifest) {
			if f.follow && !said {
				said = true
				a.Say("the backup in %s can be restored from %s on; it goes on", f.dir, m.FirstTime.Format(backup.TimeFormat))
			}
			bar.set(0, 0, "up to %s", m.LastTime.Format(backup.TimeFormat))
		},
	}
	m, err := backup.Run(ctx, o)
	bar.done()
	if err != nil {
		if m != nil {
			err = fmt.Errorf("%w; the backup in %s ends at %s, and is whole up to there", err, f.dir, m.LastTime.Format(backup.TimeFormat))
		}
		if stopped := interrupted(ctx); stopped != nil && m == nil {
			err = stopped
		}
		return asBackupUsage(err)
	}
	if f.json {
		return a.printJSON(m)
	}
	bytes := int64(0)
	for i := range m.Files {
		bytes += m.Files[i].BaseBytes + m.Files[i].LogBytes
	}
	_, err = fmt.Fprintf(a.stdout, "backup of %d data servers with %d partitions in %s, %d bytes\nfrom %s (tick %d)\nto   %s (tick %d)\n",
		m.Servers, m.Partitions, f.dir, bytes, m.FirstTime.Format(backup.TimeFormat), m.First, m.LastTime.Format(backup.TimeFormat), m.Last)
	return err
}

func (a *app) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		_, err = a.stdout.Write(append(b, '\n'))
	}
	return err
}

func (a *app) backupVerifyCommand() *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use:   "verify DIR",
		Short: "Read all of a backup and check it",
		Long: `Reads all files of a backup and checks every checksum, that nothing is missing
between its first and its last moment, and that the records of the logs can be
applied. It changes nothing. Damage is named with file and offset, and the exit
status is then 1.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("%s: %d arguments, want the directory of a backup", c.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			bar := a.progressOf("verify")
			v, err := backup.Verify(vfs.Default, args[0], func(p backup.Progress) { bar.set(p.Done, p.Total, "%d of %d data servers", p.Done, p.Total) })
			bar.done()
			switch {
			case err != nil:
				return asBackupUsage(err)
			case asJSON:
				return a.printJSON(v)
			}
			m := v.Manifest
			_, err = fmt.Fprintf(a.stdout, "%d files, %d bytes, %d rows and %d changes are intact\nfrom %s (tick %d)\nto   %s (tick %d)\n",
				v.Files, v.Bytes, v.Rows, v.Changes, m.FirstTime.Format(backup.TimeFormat), m.First, m.LastTime.Format(backup.TimeFormat), m.Last)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print what the backup has as a JSON object")
	return c
}

// restoreFlags are those of the command restore.
type restoreFlags struct {
	from, dir, to       string
	servers, partitions int
	json                bool
}

func (a *app) restoreCommand() *cobra.Command {
	f := &restoreFlags{}
	c := &cobra.Command{
		Use:   "restore --from BACKUP --data-dir DIR",
		Short: "Make a data directory of a backup, as of any moment that it has",
		Long: `Makes the data directory DIR, which must be empty or not exist, of a backup: with
the data of the last moment of the backup, or of the tick or time that --to names.
The new cluster may have other numbers of data servers and partitions. drtmx serve
--data-dir DIR then serves it.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o, err := f.options(c.Flags().Changed)
			if err != nil {
				return asBackupUsage(err)
			}
			return a.restore(c.Context(), f, o)
		},
	}
	c.Flags().Var((*dirValue)(&f.from), "from", "directory of the backup")
	c.Flags().Var((*dirValue)(&f.dir), "data-dir", "directory of the data, made if it does not exist")
	c.Flags().StringVar(&f.to, "to", "", "moment to restore: a tick, or a time such as 2026-03-01T12:00:00Z or \"2026-03-01 12:00:00\" (local); nothing means the last one of the backup")
	c.Flags().IntVar(&f.servers, "servers", 0, "data servers; 0 means as many as were backed up")
	c.Flags().IntVar(&f.partitions, "partitions", 0, "partitions of the data; 0 means as many as were backed up, or with --servers one for each server")
	c.Flags().BoolVar(&f.json, "json", false, "print what was restored as a JSON object")
	return c
}

func (f *restoreFlags) options(given func(string) bool) (o backup.RestoreOptions, err error) {
	switch {
	case f.from == "":
		return o, cli.Usagef("--from is required: the directory of a backup")
	case f.dir == "":
		return o, cli.Usagef("--data-dir is required: a directory for the data")
	case given("servers") && (f.servers < 1 || f.servers > cluster.MaxServers):
		return o, cli.Usagef("--servers %d: want 1 to %d", f.servers, cluster.MaxServers)
	}
	m, err := backup.ReadManifest(vfs.Default, f.from)
	if err != nil {
		return o, err
	}
	servers := f.servers
	if servers == 0 {
		servers = m.Servers
	}
	if given("partitions") && (f.partitions < servers || f.partitions > cluster.MaxPartitions) {
		return o, cli.Usagef("--partitions %d: want %d (the servers) to %d", f.partitions, servers, cluster.MaxPartitions)
	}
	o = backup.RestoreOptions{From: f.from, Servers: f.servers, Partitions: f.partitions}
	if o.Dir, err = filepath.Abs(f.dir); err != nil {
		return o, err
	}
	if f.to == "" {
		return o, nil
	}
	if o.To, err = parseMoment(f.to); err != nil {
		return o, err
	}
	if err := m.CheckRange(o.To); err != nil {
		return o, fmt.Errorf("--to %s: %w", f.to, err)
	}
	return o, nil
}

// parseMoment reads a tick or a time.
func parseMoment(s string) (clock.Tick, error) {
	if n, err := strconv.ParseUint(s, 10, 64); err == nil {
		return clock.Tick(n), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return clock.TickAt(t), nil
	}
	if t, err := time.ParseInLocation(time.DateTime, s, time.Local); err == nil {
		return clock.TickAt(t), nil
	}
	return 0, cli.Usagef("--to %q: want a tick, or a time such as 2026-03-01T12:00:00Z or \"2026-03-01 12:00:00\"", s)
}

func (a *app) restore(ctx context.Context, f *restoreFlags, o backup.RestoreOptions) error {
	bar := a.progressOf("restore")
	o.Progress = func(p backup.Progress) { bar.set(p.Done, p.Total, "%d of about %d %s", p.Done, p.Total, p.Stage) }
	began := time.Now()
	res, err := backup.Restore(ctx, o)
	bar.done()
	if err != nil {
		if stopped := interrupted(ctx); stopped != nil {
			err = stopped
		}
		return asBackupUsage(err)
	}
	if f.json {
		return a.printJSON(res)
	}
	_, err = fmt.Fprintf(a.stdout, "restored %d rows as of %s (tick %d) into %s: %d data servers with %d partitions, in %.1f s\n",
		res.Rows, res.Time.Format(backup.TimeFormat), res.To, f.dir, res.Servers, res.Partitions, time.Since(began).Seconds())
	return err
}
