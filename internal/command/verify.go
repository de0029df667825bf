package command

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/datadir"
	"drtmx/internal/image"
	"drtmx/internal/redo"
	"drtmx/internal/wal"
	"drtmx/server"
)

// verifiedServer is what verify has read of a data server.
type verifiedServer struct {
	Server          int    `json:"server"`
	Dir             string `json:"dir,omitempty"`        // if it is not where that of a cluster without hosts is
	Copy            bool   `json:"copy,omitempty"`       // at another host
	Incomplete      bool   `json:"incomplete,omitempty"` // of a copy: its home has not sent all of it
	CheckpointBytes int64  `json:"checkpoint_bytes"`
	CheckpointRows  uint64 `json:"checkpoint_rows"`
	LogBytes        uint64 `json:"log_bytes"` // from the checkpoint on
	Records         uint64 `json:"records"`
}

func (a *app) verifyCommand() *cobra.Command {
	var dir string
	var asJSON bool
	c := &cobra.Command{
		Use:   "verify --data-dir DIR",
		Short: "Read all of a data directory and check it",
		Long: `Reads the checkpoints and the logs of a data directory and checks every checksum,
and that nothing is missing that a recovery needs. The copies that are kept there of
other data servers are read like those, and so are data servers that a host has taken
over. The directory may be that of one host. It changes nothing, and the data
servers must not run. Damage is named with file and offset, and the exit status is
then 1. For a backup there is drtmx backup verify.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if dir == "" {
				return cli.Usagef("--data-dir is required: a directory that data servers have made")
			}
			dirs, err := cluster.Stored(dir)
			switch {
			case err != nil:
				return asUsage(err, datadir.ErrUnfinished, datadir.ErrNotDir)
			case len(dirs) == 0:
				return cli.Usagef("--data-dir %s: it has no data", dir)
			}
			var all []verifiedServer
			for _, d := range dirs {
				v, err := verifyServer(&d)
				if v.Server, v.Copy = int(d.Server), d.Copy; d.Path != server.ServerDir(dir, v.Server) {
					v.Dir = d.Path
				}
				if err != nil {
					return fmt.Errorf("%s: %w", v.name(), err)
				}
				all = append(all, v)
			}
			if asJSON {
				return a.printJSON(all)
			}
			for _, v := range all {
				in := ""
				if v.Dir != "" {
					in = " in " + v.Dir
				}
				if v.Incomplete {
					_, err = fmt.Fprintf(a.stdout, "%s%s is not complete: its data server makes it anew\n", v.name(), in)
				} else {
					_, err = fmt.Fprintf(a.stdout, "%s%s is intact: checkpoint of %d rows in %d bytes, %d records of the log in %d bytes\n",
						v.name(), in, v.CheckpointRows, v.CheckpointBytes, v.Records, v.LogBytes)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().Var((*dirValue)(&dir), "data-dir", "directory of the data")
	c.Flags().BoolVar(&asJSON, "json", false, "print what was read as JSON")
	return c
}

// name says which data server it is, or of which one it is a copy.
func (v *verifiedServer) name() string {
	if v.Copy {
		return fmt.Sprintf("copy of data server %d", v.Server)
	}
	return fmt.Sprintf("data server %d", v.Server)
}

// verifyServer reads the directory of a data server, or of a copy.
func verifyServer(d *cluster.StoredDir) (v verifiedServer, err error) {
	fs, dir := vfs.Default, d.Path
	lock, err := datadir.Lock(fs, d.Locked)
	if err != nil {
		return v, err
	}
	defer lock.Close()
	id, ok, err := datadir.Read(fs, dir)
	if err != nil {
		return v, err
	}
	if v.Incomplete = !ok; !ok {
		return v, nil
	}
	file := "EPOCH"
	epoch, served, err := datadir.ReadEpoch(fs, dir)
	if d.Copy { // it was served elsewhere, up to an epoch of which the copy has heard
		var c datadir.Copy
		file = "COPY"
		c, served, err = datadir.ReadCopy(fs, dir)
		if epoch = c.Epoch; err == nil && !served {
			err = fmt.Errorf("%w: %s has no file COPY", datadir.ErrCorrupt, dir)
		}
	}
	if err != nil {
		return v, err
	}
	if _, err := fs.Stat(fs.PathJoin(dir, server.LogDir)); !served && oserror.IsNotExist(err) {
		return v, nil // its first start did not come so far
	}
	log, err := wal.Open(wal.Options{FS: fs, Dir: fs.PathJoin(dir, server.LogDir), Identity: id.Bytes(), Exists: served, ReadOnly: true})
	if err != nil {
		return v, err
	}
	defer log.Close()
	from, err := v.checkpoint(fs, fs.PathJoin(dir, server.CheckpointDir), id.Bytes())
	if err != nil {
		return v, err
	}
	if first := log.First(); first > from {
		return v, fmt.Errorf("the log begins at %d, and the newest checkpoint is of %d: what lies between is missing", first, from)
	}
	v.LogBytes = uint64(log.End() - from)
	var r redo.Record
	return v, log.Replay(from, func(w *wal.Record) error {
		v.Records++
		if err := r.Decode(w.Payload); err != nil {
			return fmt.Errorf("the record at %d: %w", w.Start, err)
		}
		if !served || r.Kind == redo.Started && r.Epoch > epoch {
			return fmt.Errorf("the record at %d: the directory was served in a later epoch than its file %s says, %d", w.Start, file, epoch)
		}
		return nil
	})
}

// checkpoint reads the newest checkpoint. It returns the position from which the log is
// needed.
func (v *verifiedServer) checkpoint(fs vfs.FS, dir string, id [16]byte) (from wal.LSN, err error) {
	logs, err := image.List(fs, dir)
	if oserror.IsNotExist(err) || err == nil && len(logs) == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	path := fs.PathJoin(dir, image.Name(logs[0]))
	f, err := image.Open(fs, path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if f.Identity != id || f.Log != logs[0] {
		return 0, fmt.Errorf("%w: %s is of another data directory or another position", datadir.ErrForeign, path)
	}
	if st, err := fs.Stat(path); err == nil {
		v.CheckpointBytes = st.Size()
	}
	v.CheckpointRows = f.Rows
	return wal.LSN(f.Log), f.Verify()
}
