package command

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/tables"
	"drtmx/txn"
)

// changesFlags are those of the command changes.
type changesFlags struct {
	where    whereFlags
	from     string
	untilNow bool
	tables   []string
	json     bool
}

func (a *app) changesCommand() *cobra.Command {
	f := &changesFlags{}
	c := &cobra.Command{
		Use:   "changes",
		Short: "Print what commits in a running cluster, transaction by transaction",
		Long: `Prints the transactions that commit in a running cluster, whole and in order: of
drtmx cluster up, or another cluster by --runtime-dir or --connect. Its data servers
must have been started with --durability disk. It prints a line for each
transaction and one for each row, with --json an object for each transaction, which
has the cursor of what follows it. It goes on until it is interrupted, or with
--until-now until all is printed that had committed.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			from, err := parseFrom(f.from)
			if err != nil {
				return err
			}
			if err := requireCluster(&f.where); err != nil {
				return err
			}
			return a.changes(c.Context(), f, from)
		},
	}
	f.where.add(c)
	c.Flags().StringVar(&f.from, "from", "now", "where to begin: now, oldest, a tick (after which), a time such as 2026-03-01T12:00:00Z, or a cursor that was printed before")
	c.Flags().BoolVar(&f.untilNow, "until-now", false, "end after all that had committed when the command began")
	c.Flags().StringSliceVar(&f.tables, "table", nil, "print the rows of this table only, and transactions that wrote some; several: repeat it, or a,b")
	c.Flags().BoolVar(&f.json, "json", false, "print a JSON object for each transaction, one a line")
	return c
}

// parseFrom reads a cursor, a tick or a time.
func parseFrom(s string) (txn.Cursor, error) {
	if c, err := txn.ParseCursor(s); err == nil {
		return c, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return txn.CursorAt(t), nil
	}
	if t, err := time.ParseInLocation(time.DateTime, s, time.Local); err == nil {
		return txn.CursorAt(t), nil
	}
	return txn.Cursor{}, cli.Usagef("--from %.100q: want now, oldest, a tick, a time such as 2026-03-01T12:00:00Z or \"2026-03-01 12:00:00\", or a cursor", s)
}

func (a *app) changes(ctx context.Context, f *changesFlags, from txn.Cursor) error {
	c, err := f.where.connectRunning(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	db, err := txn.Open(ctx, c.Config())
	if err != nil {
		return err
	}
	defer db.Close()
	wanted := map[string]bool{}
	for _, name := range f.tables {
		if _, err := db.Table(name); err != nil {
			return cli.Usagef("--table %s: %v", name, err)
		}
		wanted[name] = true
	}
	var opts []txn.ChangesOption
	if f.untilNow {
		opts = append(opts, txn.UntilNow())
	}
	for ch, err := range db.Changes(ctx, from, opts...) {
		if err != nil {
			if stopped := interrupted(ctx); stopped != nil {
				return stopped
			}
			return asUsage(err, txn.ErrCursor, txn.ErrNoLog)
		}
		if err := a.printChange(&ch, wanted, f.json); err != nil {
			return err
		}
	}
	return nil
}

// printedChange is a transaction for programs.
type printedChange struct {
	Tick   uint64         `json:"tick"`
	Time   time.Time      `json:"time"`
	Last   bool           `json:"last"` // of its tick
	Loaded bool           `json:"loaded,omitempty"`
	Cursor string         `json:"cursor"`
	Writes []printedWrite `json:"writes"`
}

// printedWrite is a row.
type printedWrite struct {
	Table     string         `json:"table"`
	Partition int            `json:"partition"`
	Kind      string         `json:"kind"`
	Key       any            `json:"key"` // a number, or a string
	Row       map[string]any `json:"row,omitempty"`
}

func (a *app) printChange(c *txn.Change, wanted map[string]bool, asJSON bool) error {
	p := printedChange{Tick: c.Tick, Time: c.Time.UTC(), Last: c.Last, Loaded: c.Loaded, Cursor: c.Cursor.String()}
	for i := range c.Writes {
		if w := &c.Writes[i]; len(wanted) == 0 || wanted[w.Table.Name()] {
			p.Writes = append(p.Writes, printWrite(w))
		}
	}
	if len(p.Writes) == 0 {
		return nil
	}
	if asJSON {
		b, err := json.Marshal(&p)
		if err == nil {
			_, err = a.stdout.Write(append(b, '\n'))
		}
		return err
	}
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s  tick %d  %d rows\n", p.Time.Format("2006-01-02 15:04:05.00Z"), p.Tick, len(p.Writes))
	for i := range p.Writes {
		w := &p.Writes[i]
		fmt.Fprintf(b, "  %s %s %v", w.Kind, w.Table, w.Key)
		for _, name := range slices.Sorted(maps.Keys(w.Row)) {
			fmt.Fprintf(b, "  %s=%s", name, shortValue(w.Row[name]))
		}
		b.WriteByte('\n')
	}
	_, err := a.stdout.Write([]byte(b.String()))
	return err
}

// inBase64 are bytes that are no text.
type inBase64 struct {
	Base64 []byte `json:"base64"`
}

func (b inBase64) String() string { return string(b.Base64) }

// textOf is a text, or bytes if they are none: JSON has texts only.
func textOf(b []byte) any {
	if utf8.Valid(b) {
		return string(b)
	}
	return inBase64{b}
}

// shortValueMax bounds the value of a column in a line for people.
const shortValueMax = 40

func shortValue(v any) string {
	s, ok := v.(string)
	if b, is := v.(inBase64); is {
		s, ok = b.String(), true
	}
	switch {
	case !ok:
		return fmt.Sprint(v)
	case len(s) > shortValueMax:
		return fmt.Sprintf("%q… (%d B)", s[:shortValueMax], len(s))
	}
	return strconv.Quote(s)
}

func printWrite(w *txn.Write) printedWrite {
	p := printedWrite{Table: w.Table.Name(), Partition: w.Partition, Kind: w.Kind.String()}
	if w.Table.Primary().Key == tables.StringKey {
		p.Key = textOf(w.Key.Bytes())
	} else {
		p.Key = w.Key.Num()
	}
	if w.Row == nil {
		return p
	}
	p.Row = map[string]any{}
	for _, col := range w.Table.Def().Columns {
		field := w.Table.Field(col.Name)
		switch col.Type {
		case tables.Text:
			p.Row[col.Name] = textOf(w.Row.Text(field))
		case tables.Bytes:
			p.Row[col.Name] = inBase64{w.Row.Bytes(field)}
		case tables.Float64:
			v := w.Row.Float(field)
			if p.Row[col.Name] = v; math.IsNaN(v) || math.IsInf(v, 0) { // no JSON number
				p.Row[col.Name] = fmt.Sprint(v)
			}
		default:
			p.Row[col.Name] = w.Row.Int(field)
		}
	}
	return p
}
