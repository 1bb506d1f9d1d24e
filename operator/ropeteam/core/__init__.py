"""Every judgement of the operator. Pure: no clock, no cluster, no environment; time comes in as
`Observation.now`."""
