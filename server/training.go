package server

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"drtmx/internal/clock"
)

// The trainer rests trainRest times as long as the processor worked for it: a
// stale model costs a reader rounds, for right links and for falling back to
// the server, but training takes processor time from writers. So it takes at most a
// sixty-first of one processor. It looks for work at least every trainIdleMax.
const (
	trainRest    = 60
	trainIdleMin = time.Millisecond
	trainIdleMax = 50 * time.Millisecond
)

// trainer keeps models in step with their trees, and logs new generations of models and
// failed trainings. It is for one goroutine.
type trainer struct {
	parts *partitions
	log   *slog.Logger
	seen  map[[2]int]trained // by partition and index
}

// run trains until ctx ends.
func (tr *trainer) run(ctx context.Context, pace *pace) {
	// The trainer has its own thread, so that its processor time can be
	// measured. On a busy machine most of the elapsed time belongs to other
	// threads.
	if !clock.Simulated() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	idle := trainIdleMin
	t := time.NewTimer(idle)
	defer t.Stop()
	for more := true; pace.rest(ctx, t, idle, idleRest, more); {
		start := threadTime()
		worked, freed := false, false
		for _, p := range tr.parts.here {
			turn := time.Now()
			worked = p.training.trainTurn() || worked
			freed = p.arena.Tidy() || freed
			tr.note(p, time.Since(turn)) // sealing also trains
		}
		more = worked || freed
		if worked {
			idle = max(trainRest*(threadTime()-start), trainIdleMin)
		} else {
			idle = min(idle*2, trainIdleMax)
		}
	}
}

// Train trains all sub-models that are due and reports whether there were any.
// A sub-model is due only RetrainInterval (see learned.Options) after its last
// training, so some may still wait afterwards: see Stats. Train may be called
// at any time and from any goroutine.
func (s *Server) Train() (worked bool) {
	for _, p := range s.parts.here {
		worked = p.training.train(1<<20) || worked
	}
	return worked
}

// training is the training of one partition.
type training struct {
	p     *partition
	mu    sync.Mutex                             // one trainer at a time
	turn  int                                    // the next ordered index to train
	spent struct{ behind, others time.Duration } // processor time, of lazy training
	since time.Time                              // the models' clock begins here
}

// train does at most n units of training for each index and reports whether it did any.
func (tn *training) train(n int) (worked bool) {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	for _, ix := range tn.p.has.Load().trained {
		worked = tn.trainOne(ix, n) || worked
	}
	return worked
}

func (tn *training) trainOne(ix *hosted, n int) (worked bool) {
	for i := 0; i < n && ix.trains.Maintain(time.Since(tn.since), &tn.p.mu); i++ {
		worked = true
	}
	return worked
}

// trainAll trains every model of which a leaf has changed, also those that were trained
// just before. It ends even if the leaves never stop changing.
func (tn *training) trainAll() {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	for _, ix := range tn.p.has.Load().trained {
		for i := 0; i < trainAllUnits && ix.trains.MaintainAll(time.Since(tn.since), &tn.p.mu); i++ {
		}
	}
}

// trainAllUnits bounds the units of trainAll for one index.
const trainAllUnits = 1 << 20

// demandUnits bounds the units of one turn of the trainer for an index whose
// clients fell back to the server.
const demandUnits = 8

// trainTurn is the trainer's turn: one unit for an index that has work, and several for
// each index whose clients fell back to the server since the last turn. An index that no
// client reads through its models therefore costs little.
func (tn *training) trainTurn() (worked bool) {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	trained := tn.p.has.Load().trained
	worked = tn.trainLazily(trained)
	for _, ix := range trained {
		if d := ix.demand.Swap(0); d > 0 {
			worked = tn.trainOne(ix, min(int(d), demandUnits)) || worked
		}
	}
	return worked
}

// trainLazily does one unit of training: for the index from whose models readers lack
// most, or for the next one that has work. Each of the two kinds gets half of the time:
// training the models of one index may take ten times as long as those of another, and
// where rows are only appended, hundreds of leaves a second are split off.
func (tn *training) trainLazily(trained []*hosted) (worked bool) {
	start, spent := threadTime(), &tn.spent.others
	defer func() { *spent += threadTime() - start }()
	if tn.spent.behind <= tn.spent.others {
		var most *hosted
		lacks := uint64(0)
		for _, ix := range trained {
			if n := ix.trains.Behind(&tn.p.mu); n > lacks {
				most, lacks = ix, n
			}
		}
		if most != nil && most.trains.MaintainLazily(time.Since(tn.since), &tn.p.mu) {
			spent = &tn.spent.behind
			return true
		}
		tn.spent.behind = tn.spent.others // what was not needed is not saved up
	}
	for range trained {
		tn.turn++
		if trained[tn.turn%len(trained)].trains.MaintainLazily(time.Since(tn.since), &tn.p.mu) {
			return true
		}
	}
	return false
}

// slowTurn is the duration above which a turn of the trainer is logged;
// normally a turn takes milliseconds.
const slowTurn = time.Second

type trained struct {
	generations, failures uint64
	lacking               bool // failures were reported since the last generation
	keys                  bool // the models have keys
}

// note checks a partition after a turn of the trainer of the given duration.
func (tr *trainer) note(p *partition, took time.Duration) {
	if took > slowTurn {
		tr.log.Warn("training took long", "partition", p.id, "took", took)
	}
	for _, h := range p.has.Load().trained {
		ix := h.def
		st, was := h.Stats(), tr.seen[[2]int{int(p.id), ix.ID}]
		now, lacks := was.then(st.Generations, st.TrainFailures)
		now.keys = st.TrainedKeys > 0
		if now == was {
			continue
		}
		tr.seen[[2]int{int(p.id), ix.ID}] = now
		if now.keys && (now.generations != was.generations || !was.keys) { // an empty index starts with a model without keys
			tr.log.Info("models trained", "partition", p.id, "index", ix.Name, "generation", st.Generations,
				"submodels", st.SubModels, "keys", st.TrainedKeys, "mean_error_leaves", st.MeanError, "max_error_leaves", st.MaxError)
		}
		if lacks {
			tr.log.Warn("training failed: out of memory; no further report before it succeeds", "partition", p.id, "index", ix.Name, "failures", st.TrainFailures)
		}
	}
}

// then returns the state after a turn, and whether to report that memory lacks:
// once between two generations of models.
func (was trained) then(generations, failures uint64) (now trained, lacks bool) {
	now = trained{generations: generations, failures: failures, lacking: was.lacking && generations == was.generations}
	lacks = failures != was.failures && !now.lacking
	now.lacking = now.lacking || lacks
	return now, lacks
}
