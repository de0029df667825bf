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

// pieces is what conducting intervals needs. One goroutine.
type pieces struct {
	from       time.Duration // end of the last
	sum, spare *tally
}

// piece ends an interval: it takes what each shard has recorded since the last
// one and leaves an empty tally there, so that workers never wait for the
// merging.
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
