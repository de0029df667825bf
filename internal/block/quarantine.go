package block

// quarantine counts the spans whose blocks are all free.
type quarantine struct {
	pages uint64
}

func (h *pageHeap) enterQuarantine(id spanID) { h.reclaim.pages += uint64(h.span(id).pages) }
func (h *pageHeap) leaveQuarantine(id spanID) { h.reclaim.pages -= uint64(h.span(id).pages) }
