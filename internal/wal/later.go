package wal

import "time"

// SyncLater changes Options.SyncLater of a log that may be in use. 0 makes the log sync
// what is written so far at once, and each write from then on before it is released.
func (l *Log) SyncLater(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.later.Store(int64(after))
	if l.mu.started && !l.mu.closed {
		l.startSyncer()
	}
	poke(l.hurry)
}

// startSyncer starts the syncer if the log syncs later. l.mu is held.
func (l *Log) startSyncer() {
	if !l.mu.syncer && l.later.Load() != 0 {
		l.mu.syncer = true
		go l.sync()
	}
}

// sync is the syncer's goroutine. It syncs what is written after a bounded time, or at
// once when Wait asks for it. The writer goes on meanwhile.
func (l *Log) sync() {
	defer close(l.syncerDone)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-l.hurry:
		case <-l.dirty:
			timer.Reset(time.Duration(l.later.Load()))
			select {
			case <-l.stop:
				return
			case <-l.hurry:
			case <-timer.C:
			}
		}
		if err := l.syncWritten(); err != nil {
			l.fail(err)
			return
		}
		poke(l.wake) // a log at rest gets its mark
	}
}

// syncWritten makes durable what is released. What the writer writes meanwhile may
// become durable with it.
func (l *Log) syncWritten() error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	to := l.released.Load()
	if to <= l.durable.Load() || l.failed() {
		return nil
	}
	l.sinceSync.Store(time.Now().UnixNano())
	if err := l.syncData(l.cur); err != nil { // all segments before it are durable
		return err
	}
	l.sinceSync.Store(0)
	l.durable.Store(to)
	l.mu.Lock()
	l.notify()
	l.mu.Unlock()
	return nil
}

func (l *Log) failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.failed != nil
}
