package txn

import (
	"context"
	"iter"
	"time"

	"drtmx/internal/changes"
	"drtmx/internal/clock"
	"drtmx/tables"
)

// Errors of changes.
var (
	// ErrChangesTooOld reports changes that the logs no longer have: checkpoints have
	// removed them. The error is a *ChangesTooOld.
	ErrChangesTooOld = changes.ErrTooOld
	// ErrNoLog reports changes of data servers that keep data in memory only.
	ErrNoLog = changes.ErrNoLog
	// ErrCursor reports a cursor that is malformed, or of another cluster.
	ErrCursor = changes.ErrCursor
	// ErrLog reports a log that contradicts itself.
	ErrLog = changes.ErrLog
)

// ChangesTooOld is the error behind ErrChangesTooOld. Its fields are the address of the
// Server whose log begins too late, the tick After which changes were asked for, and the
// Oldest tick after which the logs have all: give that to CursorAfter.
type ChangesTooOld = changes.TooOld

// A Change is one transaction that has committed, whole: with all that it has written in
// all partitions, at all data servers. It belongs to the caller.
type Change struct {
	// Cursor is that of what follows the change. Store it, and give it to DB.Changes, to
	// go on exactly after the change.
	Cursor Cursor
	// Tick is the time of the commit, in ticks of the cluster's clock. Several
	// transactions may have one tick.
	Tick uint64
	// Time is when the tick began, by the clocks of the data servers.
	Time time.Time
	// Last says that no other transaction of the tick follows. All changes up to here
	// make the state that a Snapshot of that moment reads.
	Last bool
	// Loaded says that the change is a part of what a Loader has loaded. Loading is no
	// transaction: each part is a change of its own.
	Loaded bool
	// Writes are the rows that were written and deleted, each key once unless Loaded,
	// ordered by partition.
	Writes []Write
}

// Write is one row of a Change.
type Write struct {
	// Table is in the version of the catalogue that the feed has reached: the one with
	// which the row was written, or a later one.
	Table *tables.Table
	Key   tables.Key
	Kind  ChangeKind
	// Row is the new row, in the format of Table; nil if the row was deleted.
	Row tables.Row
	// Partition is where the row is.
	Partition int
}

// ChangeKind is what a Write does.
type ChangeKind uint8

// Kinds of writes.
const (
	// Inserted: there was no row with the key.
	Inserted ChangeKind = 1 + iota
	// Updated: there was one, and the new row replaces it.
	Updated
	// Deleted: there was one.
	Deleted
	// Loaded: the row was loaded in bulk, and replaces one with the key if there is one.
	Loaded
)

func (k ChangeKind) String() string { return changes.Kind(k).String() }

// Cursor is a place in the order of all changes of a cluster. The zero Cursor is the
// moment at which a feed begins. Its String can be stored, and ParseCursor reads it. A
// cursor is of one cluster, and lasts as long as the logs have what follows it, also
// when data servers are started again or change their hosts.
type Cursor struct{ c string }

func cursorOf(c changes.Cursor) Cursor { return Cursor{c.String()} }

func (c Cursor) parse() (changes.Cursor, error) {
	if c.c == "" {
		return changes.Cursor{}, nil
	}
	return changes.ParseCursor(c.c)
}

// ParseCursor is the inverse of Cursor.String. Its error is an ErrCursor.
func ParseCursor(s string) (Cursor, error) {
	c, err := changes.ParseCursor(s)
	if err != nil {
		return Cursor{}, err
	}
	return cursorOf(c), nil
}

// OldestChange is the cursor of the oldest changes that the logs have.
func OldestChange() Cursor { return cursorOf(changes.Oldest()) }

// CursorAfter is the cursor of all changes after a tick.
func CursorAfter(tick uint64) Cursor { return cursorOf(changes.After(clock.Tick(tick))) }

// CursorAt is the cursor of all changes from a moment on, by the clocks of the data
// servers.
func CursorAt(t time.Time) Cursor {
	return cursorOf(changes.After(max(clock.TickAt(t), 1) - 1))
}

// String returns the cursor as a text of digits or letters.
func (c Cursor) String() string {
	if c.c == "" {
		return changes.Cursor{}.String()
	}
	return c.c
}

// MarshalText implements encoding.TextMarshaler.
func (c Cursor) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Cursor) UnmarshalText(b []byte) (err error) {
	*c, err = ParseCursor(string(b))
	return err
}

// ChangesOption changes what DB.Changes returns.
type ChangesOption struct{ apply func(*changes.Options) }

// UntilNow ends a feed after all that had committed when it began.
func UntilNow() ChangesOption {
	return ChangesOption{func(o *changes.Options) { o.UntilNow = true }}
}

// ChangesMemory bounds the bytes that a feed keeps of transactions that it cannot deliver
// yet; the default is 64 MiB. A feed that needs more reads a part of the logs again. The
// transactions of one tick are always kept.
func ChangesMemory(bytes int) ChangesOption {
	return ChangesOption{func(o *changes.Options) { o.Memory = bytes }}
}

// Changes returns an iterator over all that commits after a cursor, in the order of the
// commits, from the logs of all data servers: each transaction once and whole, none that
// was aborted. Entries of secondary indexes are no changes.
//
//	for c, err := range db.Changes(ctx, from) {
//		if err != nil {
//			return err
//		}
//		…
//		from = c.Cursor
//	}
//
// It goes on until ctx ends, or the loop; with UntilNow until all is delivered that had
// committed when it began. An error ends it, and Changes of the last change's Cursor
// then goes on without a loss. The zero Cursor begins with what commits from now on,
// OldestChange with the oldest changes that the logs have. If a log no longer has what
// follows the cursor the error is an ErrChangesTooOld, and ErrNoLog if there are no logs.
//
// Changes come in the order of their ticks: all of one tick, in an order that is the same
// whenever they are read, and then those of the next. Of two transactions that write one
// row the earlier comes first, and so it is with two that concern one data server alone.
// The order of others in one tick is not that of their commits. So between two changes of
// one tick the state may be one that nobody could read. After the last of a tick
// (Change.Last) it is that of a Snapshot.
//
// A change is delivered when all data servers have closed its tick, some 20 ms after
// its commit, or when a transaction in doubt that might be earlier is decided. A data
// server that does not answer is waited for as transactions wait: until the deadline of
// ctx, or for Retry.Patience without one.
//
// The servers keep their logs for a feed until half a minute after its last request, and
// it makes requests only while the loop waits for the next change. A loop that takes
// longer goes on if the logs are still there.
//
// The client needs the role loader for all tables: a log has the rows of all.
func (db *DB) Changes(ctx context.Context, from Cursor, opts ...ChangesOption) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		var o changes.Options
		for _, opt := range opts {
			opt.apply(&o)
		}
		begin, err := from.parse()
		if err != nil {
			yield(Change{}, err)
			return
		}
		for c, err := range changes.Follow(ctx, db.exec(), begin, o) {
			if err != nil {
				yield(Change{}, err)
				return
			}
			if !yield(changeOf(c), nil) {
				return
			}
		}
	}
}

func changeOf(c *changes.Change) Change {
	out := Change{
		Cursor: cursorOf(c.Cursor()), Tick: uint64(c.Tick), Time: c.Tick.Time(), Last: c.Last, Loaded: c.Loaded,
		Writes: make([]Write, len(c.Writes)),
	}
	for i := range c.Writes {
		w := &c.Writes[i]
		out.Writes[i] = Write{Table: w.Table, Key: w.Key, Kind: ChangeKind(w.Kind), Row: w.Row, Partition: int(w.Partition)}
	}
	return out
}

// Now returns the cursor of the present: what commits after Now has returned comes after
// it, and what had committed before Now was called does not. It waits for about 20 ms.
func (db *DB) Now(ctx context.Context) (Cursor, error) {
	c, err := changes.Now(ctx, db.exec())
	if err != nil {
		return Cursor{}, err
	}
	return cursorOf(c), nil
}
