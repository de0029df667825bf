package learned

import (
	"drtmx/index"
	"drtmx/index/learned/model"
	"drtmx/index/learned/tree"
)

// nativeKeys is the keyKind of native keys, over a tree.Tree.
type nativeKeys struct {
	t      *tree.Tree
	family model.Family
	keys   []uint64
}

func (n *nativeKeys) tidy(limit int) bool { return n.t.Tidy(limit) }

func (n *nativeKeys) leaves() uint64 { return n.t.Leaves() }

func (n *nativeKeys) fences(from, to uint64, bounded bool, limit int, lows, addrs []uint64) (l, a []uint64, next uint64, more bool) {
	n.t.Walk(index.Num(from), func(low index.Key, leaf uint64) bool {
		if more = limit == 0 || bounded && low.Num >= to; more {
			next = low.Num
			return false
		}
		limit--
		lows, addrs = append(lows, low.Num), append(addrs, leaf)
		return true
	})
	return lows, addrs, next, more
}

func (n *nativeKeys) partition(lows []uint64, leaves int) []uint64 {
	starts := model.Partition(lows, leaves)
	if n.family == model.RMI || len(lows) == 0 {
		return starts
	}
	return model.Join(lows, starts, leaves)
}

func (n *nativeKeys) cut(lows []uint64, leaves int) []uint64 {
	return n.partition(lows, leaves)[1:]
}

func (n *nativeKeys) newRouter(starts []uint64) (keyRouter[uint64], error) {
	return model.NewRouter(starts)
}

func (n *nativeKeys) reaches(high, start uint64) bool { return start <= high }

func (n *nativeKeys) train(tr *model.Trainer, start, end uint64, lows, addrs []uint64, dst *model.SubModel, version uint32) (q model.Quality, prefix []uint64, err error) {
	lay := n.t.Layout()
	tr.Begin(start)
	for k, addr := range addrs {
		high := end
		if k+1 < len(lows) {
			high = lows[k+1]
		}
		tr.Add(lows[k], lay.ALN(addr), n.leafKeys(addr, lows[k], high))
	}
	q, err = tr.Train(dst, version)
	return q, nil, err
}

// leafKeys reads the keys of a leaf of a snapshot. The leaf may have changed
// since, or be another one by now: only keys of its range count.
func (n *nativeKeys) leafKeys(addr, low, high uint64) []uint64 {
	var ok bool
	if n.keys, _, ok = n.t.Keys(addr, n.keys[:0]); !ok {
		return nil
	}
	keys := n.keys
	for len(keys) > 0 && keys[0] < low {
		keys = keys[1:]
	}
	for len(keys) > 0 && high != 0 && keys[len(keys)-1] >= high {
		keys = keys[:len(keys)-1]
	}
	return keys
}

func (n *nativeKeys) crowded() bool { return false }

func (n *nativeKeys) magics() (sub, chunk uint32) { return magicSub, magicChunk }

func (n *nativeKeys) appendChunk(dst, starts, pointers []uint64) []uint64 {
	dst = append(dst, uint64(len(starts)))
	dst = append(dst, starts...)
	return append(dst, pointers...)
}

func (n *nativeKeys) pointerWord(subs, i int) int { return chunkStarts + subs + i }

func (n *nativeKeys) chunkEntry(c chunkBlock) uint64 { return c.addr }
