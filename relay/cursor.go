package relay

// cursor is how far a worker has come in its slice of a backlog. The low-water
// bound is that of the slowest worker of all relays, and the rows and dead
// entries between it and the others would be read again with each claim.
//
// Everything of the slice up to the cursor was acknowledged, by this worker or
// before: its claims saw each such row and none was left, and no transaction was
// under way that could still bring one (see lowWater). It is of no use any more
// once the exclusions have changed or the bound was taken back, after a failure of
// the database, which may have cost marks, and at each tick, since rows can come
// to be below it in the ways that the sweep is for.
type cursor struct {
	at            bound
	takenBack     int64
	slices, slice int
}

// above is where the next claim of the slice starts.
func (c *cursor) above(win window) bound {
	if c.slices != win.slices || c.slice != win.slice || c.at.excluded != win.skip.version ||
		c.takenBack != win.settled.takenBack || c.at.id <= win.above.id {
		return win.above
	}
	return c.at
}

// advance moves the cursor to the end of a claim of which every row was
// acknowledged, if it saw all there are.
func (c *cursor) advance(claimed claim, win window) {
	if win.partial || claimed.walked != len(claimed.events) || claimed.walked == 0 {
		return
	}
	*c = cursor{
		at: bound{
			id: min(claimed.last, win.settled.id), table: win.settled.table, excluded: win.skip.version,
		},
		takenBack: win.settled.takenBack, slices: win.slices, slice: win.slice,
	}
}

// settled is an id up to which no transaction can bring a row any more.
type settled struct {
	id        int64
	table     string
	takenBack int64 // how often a row was found all the same
}
