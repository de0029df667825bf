// Package changes follows the logs of all data servers of a cluster, and assembles from
// them the transactions that have committed, whole and in the order of their ticks. See
// docs/durability.md, "Changes".
//
// A feed is the state machine: it takes the records of the logs, and delivers the
// transactions of a tick when all data servers have closed it. Follow drives one over
// the network.
package changes

import (
	"errors"
	"fmt"

	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/tables"
)

// Errors of this package.
var (
	// ErrTooOld reports changes that the logs no longer have. The error is a *TooOld.
	ErrTooOld = errors.New("txn: changes too old")
	// ErrNoLog reports data servers that keep data in memory only.
	ErrNoLog = errors.New("txn: no changes: the data servers keep data in memory only, so there is no log (want --durability disk)")
	// ErrCursor reports a cursor that is malformed, or of another cluster.
	ErrCursor = errors.New("txn: bad cursor")
	// ErrLog reports a log that contradicts itself, or what its server has said.
	ErrLog = errors.New("txn: bad log")
)

// TooOld is the error behind ErrTooOld.
type TooOld struct {
	Server string // whose log begins too late
	After  uint64 // the tick after which changes were asked for
	Oldest uint64 // the oldest tick after which the logs have all changes
}

func (e *TooOld) Error() string {
	return fmt.Sprintf("%v: changes after tick %d are wanted, the logs have those after tick %d (%s) on; data server %s has removed what it logged before",
		ErrTooOld, e.After, e.Oldest, clock.Tick(e.Oldest).Time().UTC().Format("2006-01-02T15:04:05.00Z"), e.Server)
}

// Unwrap matches ErrTooOld.
func (e *TooOld) Unwrap() error { return ErrTooOld }

// Kind is what a write does to a row.
type Kind uint8

// Kinds of writes.
const (
	Insert Kind = 1 + iota // the row was absent
	Update                 // the row was there
	Delete
	Load // the row was loaded in bulk, and replaces one with its key
)

var kindNames = [...]string{Insert: "insert", Update: "update", Delete: "delete", Load: "load"}

func (k Kind) String() string {
	if k >= Insert && int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Write is one row that a transaction has written or deleted.
type Write struct {
	Table     *tables.Table
	Key       tables.Key
	Kind      Kind
	Row       tables.Row // nil if it was deleted
	Partition placement.Partition
}

// Change is one transaction that has committed. It shares no memory with the feed.
type Change struct {
	Tick   clock.Tick
	Last   bool // no other of this tick follows
	Loaded bool // rows that were loaded in bulk
	Writes []Write

	cursor Cursor
}

// Cursor returns the cursor after the change.
func (c *Change) Cursor() Cursor { return c.cursor }
