package exec

import (
	"slices"

	"drtmx/index"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// loadOrder puts the rows of a message of a Loader in ascending order of keys, as a server
// loads them fastest: it has a record of its log for each sequence that ascends. The zero
// value is ready.
type loadOrder struct {
	rows []queuedRow
	b    []byte // the buffer that the next message can have
}

// queuedRow is a row where it stands in a message. Its key refers to the message.
type queuedRow struct {
	key      index.Key
	from, to int
}

// ascending returns a message with the rows of b, which begin at a place, in ascending order.
// Rows of the same key keep theirs. The caller no longer uses b: the next message that is
// put in order gets its buffer.
func (o *loadOrder) ascending(ix *tables.Index, b []byte, at int) []byte {
	o.rows = o.rows[:0]
	sorted := true
	d := wire.NewDecoder(b[at:])
	for d.Left() > 0 {
		r := queuedRow{from: len(b) - d.Left()}
		if ix.Strings {
			r.key, _ = d.Key()
			d.Bytes()
		} else {
			r.key = index.Num(d.U64())
			d.Take(ix.RowBytes)
		}
		r.to = len(b) - d.Left()
		if n := len(o.rows); n > 0 && o.rows[n-1].key.Compare(r.key) > 0 {
			sorted = false
		}
		o.rows = append(o.rows, r)
	}
	if sorted {
		return b
	}
	slices.SortStableFunc(o.rows, func(x, y queuedRow) int { return x.key.Compare(y.key) })
	to := append(o.b[:0], b[:at]...)
	for _, r := range o.rows {
		to = append(to, b[r.from:r.to]...)
	}
	o.b = b
	return to
}
