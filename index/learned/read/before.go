package read

import (
	"encoding/binary"
	"slices"
	"strings"

	"drtmx/index"
)

// Before implements index.Ruler with the models that the client holds and the splits
// that it has learnt of since. It makes no round.
func (c *Client) Before(key index.Key, n int) index.Key {
	h := c.cur.Load()
	if c.nodes != nil && h != nil {
		return c.nodes.before(key.Num, n/max(h.root.Layout.Slots*rowsPerLeafShare/16, 1))
	}
	if h == nil || !h.Trained() {
		return index.Key{}
	}
	sub := h.Route(key)
	start := h.Start(sub)
	held := h.held[sub].Load()
	if held == nil || start.Compare(key) >= 0 {
		return start
	}
	pred := held.model.Predict(h.Input(key, held.prefix))
	first, low, ok := held.leafBefore(key, pred.Leaf, n/max(h.root.Layout.Slots*rowsPerLeafShare/16, 1))
	if ok {
		return low
	}
	if first <= 0 {
		return start
	}
	return held.keyOf(h, start, first, key)
}

// leafBefore goes back by n leaves from the leaf of a key, which the model predicts
// in logical leaf from. It ends at a leaf of the patch, whose low fence it returns,
// or else at a logical leaf of the model.
func (s *heldSub) leafBefore(key index.Key, from, n int) (logical int, low index.Key, ok bool) {
	p := s.patch.Load()
	if p == nil {
		return from - n, low, false
	}
	for _, l := range slices.Backward(p.all()) {
		if below(key, l.low) {
			continue
		}
		// The leaf is between leaf l.from of the model and the one after it.
		if at := min(max(l.from, 0), from); at < from {
			if from-at > n {
				break
			}
			from, n = at, n-(from-at)
		}
		if n == 0 {
			return 0, l.low, true
		}
		n--
	}
	return from - n, low, false
}

// keyOf returns approximately the least key that the sub-model, which begins at
// start, predicts in a logical leaf. The result is not above key.
func (s *heldSub) keyOf(h *cache, start index.Key, leaf int, key index.Key) index.Key {
	low, top := h.Input(start, s.prefix), h.Input(key, s.prefix)
	for low < top { // search for the least input whose leaf is not before the given one
		if mid := low + (top-low)/2; s.model.Predict(mid).Leaf < leaf {
			low = mid + 1
		} else {
			top = mid
		}
	}
	guess := index.Num(low)
	if key.Str != "" {
		digest := binary.BigEndian.AppendUint64(nil, low)
		guess = index.Str(s.prefix + strings.TrimRight(string(digest), "\x00"))
	}
	if guess.Compare(start) < 0 || guess.Compare(key) > 0 {
		return start
	}
	return guess
}
