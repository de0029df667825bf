package server

import (
	"context"
	"fmt"
	"math"
	"time"

	"drtmx/index"
	"drtmx/tables"
)

// entries goes once through an ordered index of this data server, in the order of the keys and some at a
// time: it sees all entries that exist during the whole pass, and some of the others. Where entries are
// locked it reads fewer at a time, and waits. It needs no lock.
type entries struct {
	srv  index.OrderedServer
	ix   *tables.Index
	most int // at a time

	lo    index.Key // where the next ones begin
	limit int
	ended bool
	res   index.ScanResult
	buf   []uint64
}

// Bounds of the rest before locked entries are read again.
const (
	lockedEntriesAgainAfter = time.Millisecond
	lockedEntriesAgainMost  = time.Second
)

func newEntries(srv index.OrderedServer, ix *tables.Index, most int) *entries {
	return &entries{srv: srv, ix: ix, most: most, limit: most}
}

// next returns the next entries, none at the end. They are valid until the next call.
func (e *entries) next(ctx context.Context) ([]index.Entry, error) {
	for rest := lockedEntriesAgainAfter; !e.ended && ctx.Err() == nil; {
		e.buf = e.srv.Scan(e.lo, last(e.ix), e.limit, &e.res, e.buf)
		switch e.res.Status {
		case index.Found, index.NotFound:
		case index.Locked:
			if e.limit = max(e.limit/2, 1); e.limit > 1 {
				continue
			}
			select {
			case <-ctx.Done():
			case <-time.After(rest):
			}
			rest = min(2*rest, lockedEntriesAgainMost)
			continue
		default:
			return nil, fmt.Errorf("server: index %s: a scan ended as %v", e.ix.Name, e.res.Status)
		}
		found := e.res.Entries
		if e.ended = !e.res.More || len(found) == 0; !e.ended {
			e.lo, e.ended = after(e.ix, found[len(found)-1].Key)
		}
		e.limit = min(2*e.limit, e.most)
		return found, nil
	}
	return nil, ctx.Err()
}

// after returns the key after another one, or that there is none.
func after(ix *tables.Index, key index.Key) (next index.Key, none bool) {
	if ix.Strings {
		return index.Str(key.Str + "\x00"), false
	}
	return index.Num(key.Num + 1), key.Num == math.MaxUint64
}
