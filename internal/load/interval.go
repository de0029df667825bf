package load

import "time"

// Interval is a piece of the measured interval.
type Interval struct {
	From, To time.Duration // since the measured interval began
	Last     bool          // the run has ended
	// Types are in the order of Config.Types. They are valid until the
	// callback returns.
	Types []TypeRecord
}

// pieces holds the state of intervals. Only the goroutine of conduct uses it.
type pieces struct {
	from       time.Duration // end of the last piece
	sum, spare *tally
}

// piece ends an interval and passes it to Config.Interval. It replaces each shard's
// tally by an empty one and merges it then, so that workers never wait for the merge.
func (r *run) piece(to time.Duration, last bool) {
	p := r.pieces
	p.sum.reset()
	for _, s := range r.shards {
		s.mu.Lock()
		s.piece, p.spare = p.spare, s.piece
		s.mu.Unlock()
		p.sum.merge(p.spare)
		p.spare.reset()
	}
	r.cfg.Interval(Interval{From: p.from, To: to, Last: last, Types: p.sum.types})
	p.from = to
}
