package train

import (
	"drtmx/index"
	"drtmx/index/learned/model"
)

// nativeKeys implements keyKind for native keys.
type nativeKeys struct {
	t      Leaves
	family model.Family
	keys   []uint64
}

func (n *nativeKeys) partition(lows []index.Key, leaves int) []index.Key {
	nums := make([]uint64, len(lows))
	for i, k := range lows {
		nums[i] = k.Num
	}
	starts := model.Partition(nums, leaves)
	if n.family != model.RMI && len(nums) > 0 {
		starts = model.Join(nums, starts, leaves)
	}
	keys := make([]index.Key, len(starts))
	for i, s := range starts {
		keys[i] = index.Num(s)
	}
	return keys
}

func (n *nativeKeys) cut(lows []index.Key, leaves int) []index.Key {
	return n.partition(lows, leaves)[1:]
}

func (n *nativeKeys) train(tr *model.Trainer, start, end index.Key, lows []index.Key, addrs []uint64, dst *model.SubModel, version uint32) (q model.Quality, prefix string, err error) {
	lay := n.t.Layout()
	tr.Begin(start.Num)
	for k, addr := range addrs {
		high := end.Num
		if k+1 < len(lows) {
			high = lows[k+1].Num
		}
		tr.Add(lows[k].Num, lay.ALN(addr), n.leafKeys(addr, lows[k].Num, high))
	}
	q, err = tr.Train(dst, version)
	return q, "", err
}

// leafKeys returns the keys of a leaf that are in the given range. The leaf may have
// changed, or been reused, since the fences were collected.
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
