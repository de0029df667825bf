package read

import (
	"encoding/binary"
	"strings"

	"drtmx/index"
)

// Before implements index.Ruler with the models that the client holds. It makes
// no round.
func (c *Client) Before(key index.Key, n int) index.Key {
	h := c.cur.Load()
	if h == nil || !h.Trained() {
		return index.Key{}
	}
	sub := h.Route(key)
	start := h.Start(sub)
	held := h.held[sub].Load()
	if held == nil || start.Compare(key) >= 0 {
		return start
	}
	m, top := &held.model, h.Input(key, held.prefix)
	first := m.Predict(top).Leaf - n/max(h.root.Layout.Slots*rowsPerLeafShare/16, 1)
	if first <= 0 {
		return start
	}
	low := h.Input(start, held.prefix)
	for low < top { // the least input whose leaf is not before first
		if mid := low + (top-low)/2; m.Predict(mid).Leaf < first {
			low = mid + 1
		} else {
			top = mid
		}
	}
	guess := index.Num(low)
	if c.o.Strings {
		digest := binary.BigEndian.AppendUint64(nil, low)
		guess = index.Str(held.prefix + strings.TrimRight(string(digest), "\x00"))
	}
	if guess.Compare(start) < 0 || guess.Compare(key) > 0 {
		return start
	}
	return guess
}
