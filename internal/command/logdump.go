package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"drtmx/internal/block"
	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/datadir"
	"drtmx/internal/redo"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/server"
	"drtmx/tables"
)

func (a *app) logCommand() *cobra.Command {
	c := &cobra.Command{Use: "log", Short: "Look into the logs of a data directory"}
	c.AddCommand(a.logDumpCommand())
	group(c)
	return c
}

func (a *app) logDumpCommand() *cobra.Command {
	var dir string
	var index int
	var asJSON bool
	c := &cobra.Command{
		Use:   "dump --data-dir DIR",
		Short: "Print what is in the logs of a data directory",
		Long: `Prints the records of the logs in a data directory, one a line, in the order of
each log: the data server, the position, the kind, and what the record says. With
--json each line is an object. It changes nothing, and the data servers must not
run. If a log is damaged it prints what comes before, then the file and the
offset, and exits with status 1.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if dir == "" {
				return cli.Usagef("--data-dir is required: a directory that data servers have made")
			}
			data, err := cluster.ReadData(dir)
			switch {
			case err != nil:
				return asUsage(err, datadir.ErrUnfinished, datadir.ErrNotDir)
			case data == nil || data.Catalog == nil:
				return cli.Usagef("--data-dir %s: it has no data", dir)
			case index < -1 || index >= data.Servers:
				return cli.Usagef("--server %d: want 0 to %d, or nothing for all", index, data.Servers-1)
			}
			dirs, err := data.Dirs(dir)
			if err != nil {
				return err
			}
			for _, s := range dirs {
				if index >= 0 && int(s.Server) != index {
					continue
				}
				d := &logDump{w: a.stdout, json: asJSON, server: int(s.Server), catalog: data.Catalog}
				if err := d.run(s.Path); err != nil {
					return fmt.Errorf("data server %d: %w", s.Server, err)
				}
			}
			return nil
		},
	}
	c.Flags().Var((*dirValue)(&dir), "data-dir", "directory of the data")
	c.Flags().IntVar(&index, "server", -1, "only the log of this data server")
	c.Flags().BoolVar(&asJSON, "json", false, "print each record as a JSON object")
	return c
}

// logDump prints the log of one data server.
type logDump struct {
	w       io.Writer
	json    bool
	server  int
	catalog *tables.Catalog // at this position of the log
}

func (d *logDump) run(dir string) (err error) {
	lock, err := datadir.Lock(vfs.Default, dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	id, _, err := datadir.Read(vfs.Default, dir)
	if err != nil {
		return err
	}
	log, err := wal.Open(wal.Options{FS: vfs.Default, Dir: vfs.Default.PathJoin(dir, server.LogDir), Identity: id.Bytes(), ReadOnly: true})
	if err != nil {
		return err
	}
	defer log.Close()
	var r redo.Record
	return log.Replay(log.First(), func(w *wal.Record) error {
		if err := r.Decode(w.Payload); err != nil {
			return fmt.Errorf("at %d: %w", w.Start, err)
		}
		if r.Kind == redo.Catalog {
			c, err := d.catalog.Follow(r.Catalog)
			if err != nil {
				return fmt.Errorf("at %d: %w", w.Start, err)
			}
			d.catalog = c
		}
		return d.print(d.describe(w, &r))
	})
}

// loggedRecord is a record for people and programs.
type loggedRecord struct {
	Server      int          `json:"server"`
	Start       uint64       `json:"start"`
	End         uint64       `json:"end"`
	Kind        string       `json:"kind"`
	Session     string       `json:"session,omitempty"` // of the client, and its transaction's number
	ResultBytes int          `json:"result_bytes,omitempty"`
	Transaction string       `json:"transaction,omitempty"` // of several partitions
	Parties     []string     `json:"parties,omitempty"`
	Commit      *bool        `json:"commit,omitempty"` // of kind decided
	Partition   *int         `json:"partition,omitempty"`
	CSN         uint64       `json:"csn,omitempty"`
	Tick        int64        `json:"tick,omitempty"`
	Epoch       uint32       `json:"epoch,omitempty"`
	Index       string       `json:"index,omitempty"` // of loaded rows
	Bytes       int          `json:"bytes,omitempty"` // of loaded rows, or of the catalogue
	Parts       []loggedPart `json:"parts,omitempty"`
}

// loggedPart is what a record says of one partition.
type loggedPart struct {
	Partition int           `json:"partition"`
	CSN       uint64        `json:"csn,omitempty"`
	Reads     bool          `json:"reads,omitempty"` // locked, too
	Writes    []loggedWrite `json:"writes"`
}

// loggedWrite is a row that was written or deleted.
type loggedWrite struct {
	Index    string `json:"index"`
	Key      string `json:"key"`
	Op       string `json:"op"` // put or delete
	RowBytes int    `json:"row_bytes,omitempty"`
}

func (d *logDump) indexName(n uint16) string {
	if int(n) < len(d.catalog.Indexes) {
		return d.catalog.Indexes[n].Name
	}
	return fmt.Sprintf("index %d", n)
}

// describe describes a record.
func (d *logDump) describe(w *wal.Record, r *redo.Record) *loggedRecord {
	l := &loggedRecord{Server: d.server, Start: uint64(w.Start), End: uint64(w.End), Kind: r.Kind.String(), CSN: uint64(r.CSN), Tick: int64(r.Tick), Epoch: r.Epoch}
	if r.Session != (wire.ID{}) {
		l.Session, l.ResultBytes = fmt.Sprintf("%x-%d", r.Session.Client, r.Session.Seq), len(r.Result)
	}
	if step := &r.Step; step.Kind != 0 {
		at := int(r.Partition)
		l.Partition, l.Tick = &at, int64(step.Tick)
		if step.ID.Seq != 0 {
			l.Transaction = fmt.Sprintf("%d-%x-%d", step.ID.Coordinator.Partition, step.ID.Coordinator.Incarnation, step.ID.Seq)
		}
		for _, p := range step.Parties {
			l.Parties = append(l.Parties, fmt.Sprintf("%d-%x", p.Partition, p.Incarnation))
		}
	}
	switch r.Kind {
	case redo.Decided:
		commit := r.Step.Commit
		l.Commit = &commit
	case redo.Load:
		at := int(r.Partition)
		l.Partition, l.Index, l.Bytes = &at, d.indexName(r.Index), len(r.Rows)
	case redo.Catalog:
		l.Bytes = len(r.Catalog)
	}
	for i := range r.Parts {
		p := &r.Parts[i]
		part := loggedPart{Partition: int(p.Partition), CSN: uint64(p.CSN), Reads: p.Reads, Writes: []loggedWrite{}}
		for j := range p.Writes {
			part.Writes = append(part.Writes, d.write(&p.Writes[j]))
		}
		l.Parts = append(l.Parts, part)
	}
	return l
}

func (d *logDump) write(w *wire.Write) loggedWrite {
	l := loggedWrite{Index: d.indexName(w.Index), Op: "put", RowBytes: len(w.Row), Key: fmt.Sprintf("%#x", w.Key.Num)}
	if w.Op == wire.Delete {
		l.Op = "delete"
	}
	if w.Strings {
		l.Key = fmt.Sprintf("%q", w.Key.Str)
	}
	return l
}

func (d *logDump) print(l *loggedRecord) error {
	if d.json {
		b, err := json.Marshal(l)
		if err == nil {
			_, err = d.w.Write(append(b, '\n'))
		}
		return err
	}
	_, err := fmt.Fprintln(d.w, l.text())
	return err
}

// text is the record as a line.
func (l *loggedRecord) text() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "server %d  %d-%d  %s", l.Server, l.Start, l.End, l.Kind)
	if l.Partition != nil {
		fmt.Fprintf(b, "  partition %d", *l.Partition)
	}
	if l.Commit != nil {
		fmt.Fprintf(b, "  commit %v", *l.Commit)
	}
	for _, f := range []struct{ name, value string }{
		{"transaction", l.Transaction}, {"parties", strings.Join(l.Parties, " ")}, {"session", l.Session}, {"index", l.Index},
	} {
		if f.value != "" {
			fmt.Fprintf(b, "  %s %s", f.name, f.value)
		}
	}
	if l.CSN != 0 {
		fmt.Fprintf(b, "  %s", csnText(l.CSN))
	}
	if l.Epoch != 0 {
		fmt.Fprintf(b, "  epoch %d", l.Epoch)
	}
	if l.Tick != 0 {
		fmt.Fprintf(b, "  tick %d", l.Tick)
	}
	if l.Bytes != 0 {
		fmt.Fprintf(b, "  %d B", l.Bytes)
	}
	for i := range l.Parts {
		p := &l.Parts[i]
		fmt.Fprintf(b, "  partition %d", p.Partition)
		if p.CSN != 0 {
			fmt.Fprintf(b, " %s", csnText(p.CSN))
		}
		if p.Reads {
			b.WriteString(" with reads")
		}
		for _, w := range p.Writes {
			fmt.Fprintf(b, ", %s %s %s", w.Op, w.Index, w.Key)
			if w.RowBytes > 0 {
				fmt.Fprintf(b, " (%d B)", w.RowBytes)
			}
		}
	}
	return b.String()
}

// csnText is a commit sequence number as tick and sequence.
func csnText(n uint64) string {
	return fmt.Sprintf("csn %d.%d", block.CSN(n).Tick(), block.CSN(n).Seq())
}
